"""The bake itself: open the source, write every file into the staging folder, the manifest last."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path

from appliance.bake import DEFAULT_SOURCE, DTYPES
from appliance.bake.fuse import plan_tensors
from appliance.bake.manifest import MANIFEST, make_manifest, to_json
from appliance.bake.source import Progress, Source, quiet
from appliance.bake.staging import staged
from appliance.bake.writer import WrittenFile, write_weights
from appliance.errors import BakeError


def bake_source(
    source: str,
    out: Path,
    dtype: str,
    revision: str | None,
    name: str | None,
    progress: Progress | None,
    force: bool,
) -> Path:
    """See `appliance.bake.bake`."""
    if dtype not in DTYPES:
        raise BakeError(f"dtype {dtype} is not supported; supported are {', '.join(DTYPES)}")
    report = progress or quiet
    try:
        with staged(out, force=force) as folder, opened(source, revision, folder, report) as opened_source:
            write_folder(folder, opened_source, dtype, name, report)
    except OSError as error:
        raise BakeError(f"baking {source} into {out} failed: {error}") from None
    return out


def write_folder(folder: Path, source: Source, dtype: str, name: str | None, progress: Progress) -> None:
    """Write a whole baked folder into an empty directory."""
    target = str(source.config["dtype"]) if dtype == "auto" else dtype
    plan = plan_tensors(source.config, source.weights)
    files = {file: _write(folder / file, content) for file, content in _small_files(source, target).items()}
    files["model.safetensors"] = write_weights(folder / "model.safetensors", plan, source.weights, target, progress)
    num_parameters = sum(tensor.num_elements for tensor in plan)
    manifest = make_manifest(source, name or source.name, target, num_parameters, files)
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


def opened(source: str, revision: str | None, folder: Path, progress: Progress) -> AbstractContextManager[Source]:
    """Find out what `source` is and open it."""
    path = Path(source).expanduser()
    if path.is_dir():
        from appliance.bake.hf_folder import open_folder

        if (path / MANIFEST).exists():
            raise BakeError(f"{source} is a baked model already")
        return nullcontext(open_folder(path))
    raise BakeError(f"{source} unsupported {DEFAULT_SOURCE}")
