"""The folder beside the target in which a bake grows: it appears under its name whole, or not at all.

A lock on the staging folder keeps two bakes of one target apart and tells a killed bake's remains from a living one's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.errors import BakeError


@contextmanager
def staged(out: Path, *, force: bool) -> Iterator[Path]:
    """Give an empty folder beside `out`; on success it becomes `out`, on any error (or Ctrl-C) nothing is left.

    Raises BakeError where `out` is in the way (it may be replaced only if it is a baked folder and `force` is set).
    """
    out = Path(os.path.realpath(out))
    _check_target(out, force)
    with _locked_folder(out) as folder:
        yield folder
        _check_target(out, force)
        _sync_tree(folder)
        _move_into_place(folder, out)


def _check_target(out: Path, force: bool) -> None:
    if not (out.exists() or out.is_symlink()):
        return
    if not _is_baked(out):
        raise BakeError(f"{out} exists and is not a baked model, it is left alone")
    if not force:
        raise BakeError(f"{out} already holds a baked model (force replaces it)")


def _is_baked(out: Path) -> bool:
    return (out / "manifest.json").is_file() and (out / "model.safetensors").is_file()


@contextmanager
def _locked_folder(out: Path) -> Iterator[Path]:
    folder = out.parent / f".{out.name}.baking"
    lock = _lock(folder, out)
    try:
        _empty(folder)
        yield folder
    finally:
        # After the move the name is free, and may be another bake's by now; after an error it is still ours.
        if _is_same(lock, folder):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock(folder: Path, out: Path) -> int:
    """Create and lock the folder. Another bake may rename or remove it in between: then the lock is worth nothing."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BakeError(f"{out} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise BakeError(f"{out} is being written by another bake") from None
        if _is_same(lock, folder):
            return lock
        os.close(lock)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _sync_tree(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move_into_place(folder: Path, out: Path) -> None:
    if not out.exists():
        folder.rename(out)
    else:
        old = out.parent / f".{out.name}.old"
        shutil.rmtree(old, ignore_errors=True)
        out.rename(old)
        try:
            folder.rename(out)
        except OSError:
            old.rename(out)
            raise
        shutil.rmtree(old, ignore_errors=True)
    descriptor = os.open(out.parent, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
