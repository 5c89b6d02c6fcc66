"""manifest.json: what was baked from what, and the digest of every file; and the check of a folder against it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from appliance import __version__
from appliance.bake.source import Progress, Source, quiet
from appliance.bake.writer import WrittenFile
from appliance.baked_model import FORMAT_VERSION, BakedModel
from appliance.errors import ApplianceError, BakeError

MANIFEST = "manifest.json"
_READ_BYTES = 4 << 20


def to_json(value: Any) -> bytes:
    """JSON as all baked files have it: sorted, readable, no trace of when or where."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def digest_file(path: Path, progress: Progress = quiet, start: float = 0.0, share: float = 1.0) -> WrittenFile:
    """sha256 and size of a file, reporting "digest" progress from `start` on, `share` of the whole."""
    digest, done, total = hashlib.sha256(), 0, max(1, path.stat().st_size)
    with path.open("rb") as handle:
        while data := handle.read(_READ_BYTES):
            digest.update(data)
            done += len(data)
            progress("digest", start + share * done / total)
    return WrittenFile(digest.hexdigest(), done)


def digest_files(paths: Iterable[Path]) -> str:
    """One sha256 for several files: of their names and digests, in the order of the names."""
    lines = [f"{digest_file(path).sha256}  {path.name}\n" for path in sorted(paths, key=lambda path: path.name)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def make_manifest(
    source: Source,
    name: str,
    dtype: str,
    num_parameters: int,
    files: dict[str, WrittenFile],
    quantization: str | None = None,
    notes: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The manifest's content."""
    return {
        "format": FORMAT_VERSION,
        "name": name,
        "source": source.provenance.as_dict(),
        "licence": source.licence,
        "weights": {
            "dtype": dtype,
            "quantization": None if quantization == "none" else quantization,
            "num_parameters": num_parameters,
            **({"notes": list(notes)} if notes else {}),
        },
        "files": {file: {"sha256": written.sha256, "bytes": written.num_bytes} for file, written in files.items()},
        "created_by": f"breadbox {__version__}",
    }


def verify(path: Path, progress: Progress | None = None) -> list[str]:
    """Check a baked folder against its manifest: problems in one line each, none when it is whole.

    Raises BakeError where there is no readable manifest, that is, nothing to check against.
    """
    files = _listed_files(path)
    present = {entry.name for entry in path.iterdir()} - {MANIFEST}
    problems = [f"{name} is missing" for name in sorted(files.keys() - present)]
    problems += [f"{name} is not in the manifest" for name in sorted(present - files.keys())]
    total = sum(entry["bytes"] for entry in files.values()) or 1
    done = 0
    for name in sorted(files.keys() & present):
        problems += _file_problems(path / name, files[name], progress or quiet, done / total, total)
        done += files[name]["bytes"]
    return problems


def _listed_files(path: Path) -> dict[str, dict[str, Any]]:
    try:
        manifest = BakedModel(path).manifest
    except ApplianceError as error:
        raise BakeError(str(error)) from None
    if manifest.get("format") != FORMAT_VERSION:
        raise BakeError(f"{path / MANIFEST}: format {manifest.get('format')!r} is not {FORMAT_VERSION}")
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(_is_entry(entry) for entry in files.values()):
        raise BakeError(f"{path / MANIFEST}: files must map names to sha256 and bytes")
    return files


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and isinstance(entry.get("bytes"), int)


def _file_problems(path: Path, entry: dict[str, Any], progress: Progress, start: float, total: int) -> list[str]:
    try:
        size = path.stat().st_size
        if not path.is_file() or size != entry["bytes"]:
            return [f"{path.name} has {size} bytes, the manifest says {entry['bytes']}"]
        found = digest_file(path, progress, start, entry["bytes"] / total).sha256
    except OSError as error:
        return [f"{path.name} cannot be read: {error.strerror}"]
    return [] if found == entry["sha256"] else [f"{path.name} differs from its digest in the manifest"]
