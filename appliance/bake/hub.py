"""A Hugging Face repository: pinned to a commit, only the files that a bake reads, into the hub's own cache.

huggingface_hub resumes what was cut off and reads its own settings (endpoint, offline mode, cache folder).
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from appliance import settings
from appliance.bake.hf_folder import open_folder, read_config
from appliance.bake.source import Progress, Provenance, Source, quiet
from appliance.errors import BakeError

PATTERNS = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "chat_template.json", "README.md", "LICENSE*", "LICENCE*"),
    *("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json"),
)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_repository_id(text: str) -> bool:
    """Whether this can be the id of a repository ("owner/name")."""
    return _REPOSITORY.fullmatch(text) is not None


def open_repository(repository: str, revision: str | None, progress: Progress) -> Source:
    """Download and open a repository. Raises BakeError, in one line, where it can't be had."""
    with _told_in_one_line(repository, revision):
        commit = _commit(repository, revision)
        progress("download", 0.0)
        read_config(_download(repository, commit, ["config.json"], quiet))  # refuses before the weights are downloaded
        folder = _download(repository, commit, PATTERNS, progress)
        progress("download", 1.0)
    provenance = Provenance("hub", repository, revision=commit)
    return open_folder(folder, name=repository.rsplit("/", 1)[-1], provenance=provenance)


def _commit(repository: str, revision: str | None) -> str:
    """The commit that the revision names now. A full commit needs no question, so a cached one works offline."""
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi

    info = HfApi(token=settings.hub_token()).model_info(repository, revision=revision, timeout=30.0)
    names = [entry.rfilename for entry in info.siblings or []]
    if not any(fnmatch(name, pattern) for name in names for pattern in PATTERNS if "safetensors" in pattern):
        kinds = [kind for kind in ("gguf", "bin", "pth", "pt") if any(name.endswith(f".{kind}") for name in names)]
        held = f"only .{kinds[0]} files" if kinds else "no weights"
        raise BakeError(f"{repository} holds no safetensors weights, {held}")
    if info.sha is None:
        raise BakeError(f"{repository}: the hub did not say which commit {revision or 'main'} is")
    return str(info.sha)


def _download(repository: str, commit: str, patterns: Sequence[str], progress: Progress) -> Path:
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        repository,
        revision=commit,
        allow_patterns=list(patterns),
        token=settings.hub_token(),
        tqdm_class=_progress_bar(progress),
    )
    return Path(folder)


def _progress_bar(progress: Progress) -> Any:
    """A bar class for huggingface_hub that draws nothing and reports the bytes of all files together."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class ReportingBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **(kwargs | {"disable": False, "file": _Nowhere(), "gui": False}))

        def update(self, n: float | None = 1) -> None:
            super().update(n)
            if self._counts_bytes and self.total:
                progress("download", min(1.0, self.n / self.total))

    return ReportingBar


class _Nowhere:
    """A text stream that drops everything."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        return None


@contextlib.contextmanager
def _told_in_one_line(repository: str, revision: str | None) -> Iterator[None]:
    from huggingface_hub import errors

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    at = f" at revision {revision}" if revision else ""
    try:
        yield
    except BakeError:
        raise
    except errors.GatedRepoError:
        raise BakeError(f"{repository} is gated: accept its terms on its page and set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise BakeError(f"{repository} does not exist on the hub, or is private (then set HF_TOKEN)") from None
    except errors.RevisionNotFoundError:
        raise BakeError(f"{repository} has no revision {revision}") from None
    except errors.OfflineModeIsEnabled:
        raise BakeError(f"{repository}{at} cannot be downloaded: HF_HUB_OFFLINE is set") from None
    except Exception as error:  # httpx, OSError and the hub's own errors: they share no base that is worth naming
        raise BakeError(f"{repository}{at} cannot be downloaded: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
