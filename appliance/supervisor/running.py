"""Finds a box that runs on this machine (in this container), for commands that want something of it."""

from __future__ import annotations

import fcntl
from pathlib import Path

from appliance.errors import ApplianceError
from appliance.settings import Settings, from_json, temporary_dirs

RENDERED = "settings.json"
_PATTERN = f"breadbox-*/{RENDERED}"


class NoBoxError(ApplianceError):
    """There is no running box, or it isn't clear which one is meant."""


def find_running(run_dir: Path | None = None) -> Settings:
    """The settings of the box in this run directory, or of the only one that runs. Raises NoBoxError."""
    if run_dir is not None:
        if not _is_running(run_dir):
            raise NoBoxError(f"no box is running in {run_dir}")
        return _read(run_dir)
    found = dict.fromkeys(file.parent for home in temporary_dirs() for file in home.glob(_PATTERN))
    running = [folder for folder in found if _is_running(folder)]
    if not running:
        raise NoBoxError("no box of this user is running here (one with a --run-dir needs it here, too)")
    if len(running) > 1:
        raise NoBoxError(f"{len(running)} boxes are running: say which one with --run-dir ({_listing(running)})")
    return _read(running[0])


def _read(run_dir: Path) -> Settings:
    try:
        return from_json((run_dir / RENDERED).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NoBoxError(f"the box in {run_dir} has no readable settings: {error}") from None


def _is_running(run_dir: Path) -> bool:
    """Whether a box holds the folder's lock; those of other users can't be opened and don't count."""
    try:
        with (run_dir / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _listing(folders: list[Path]) -> str:
    return ", ".join(map(str, folders))
