"""The run directory: sockets, log pipes, rendered configuration; private to the user, one box at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType

from appliance.errors import SettingsError
from appliance.settings import Settings, temporary_dirs

# A unix socket's path has at most 107 bytes; the longest name in here is supervisord's "super.sock.<pid>".
MAX_PATH_BYTES = 107 - len("/super.sock.4194304")
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/@+=,~-]*")
_PREFIX = "breadbox-"
_MIN_AGE_S = 60.0
_FILES = ("settings.json", "progress.json", "draining", "not-ready")
TEMPORARY = "tmp"  # the programs' TMPDIR
_JOURNALS = "journal"
_SUBDIRS = ("responses", "keys", "log", "programs", "prometheus", "nginx", "worker", _JOURNALS, TEMPORARY)


class RunDir:
    """An open run directory. Leaving it removes what the box put there, and the folder too if it made it."""

    def __init__(self, path: Path, is_temporary: bool) -> None:
        self.path = path
        self._is_temporary = is_temporary
        self._lock = _lock(path)
        self._remove_contents()
        for name in _SUBDIRS:
            (path / name).mkdir(mode=0o700)

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove_contents()
        with contextlib.suppress(OSError):
            (self.path / "lock").unlink()
            if self._is_temporary:
                self.path.rmdir()
        os.close(self._lock)

    def _remove_contents(self) -> None:
        """Remove what boxes put here (an earlier one may have been killed), and nothing else."""
        for name in _SUBDIRS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for pattern in (
            "*.sock",
            "super.sock.*",
            "*.conf",
            "*.pid",
            "settings.json",
            "progress.json",
            "draining",
            "*.new",
            "not-ready",
            "stuck",
        ):
            for file in self.path.glob(pattern):
                file.unlink(missing_ok=True)


def journal_path(run_dir: Path, index: int) -> Path:
    """The journal of the engine of model number `index`; beside it lies what else the next engine must know."""
    return run_dir / _JOURNALS / f"engine-{index}.journal"


def open_run_dir(settings: Settings) -> RunDir:
    """Make or take the run directory. Raises SettingsError."""
    if settings.run_dir is None:
        home = find_temporary_dir()
        _remove_abandoned(home)
        return RunDir(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home)), is_temporary=True)
    path = settings.run_dir.expanduser().absolute()
    problem = find_problem(path)
    if problem:
        raise SettingsError([f"--run-dir: {problem}"])
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return RunDir(path, is_temporary=False)


def find_temporary_dir() -> Path:
    """The first usable place for a temporary run directory. Raises SettingsError."""
    candidates = temporary_dirs()
    for path in candidates:
        if path.is_dir() and os.access(path, os.W_OK | os.X_OK) and find_problem(path / "breadbox-12345678") is None:
            return path
    tried = ", ".join(dict.fromkeys(map(str, candidates)))
    raise SettingsError([f"no writable folder for the run directory (tried {tried}): give one with --run-dir"])


def find_problem(path: Path) -> str | None:
    """Why a box can't run in this folder, or None."""
    if not _PLAIN_PATH.fullmatch(str(path)):
        return f"{path} has characters that the programs' configuration files cannot hold"
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        return f"{path} is too long for unix sockets: at most {MAX_PATH_BYTES} bytes"
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        return f"{existing} is not a folder"
    return None if os.access(existing, os.W_OK | os.X_OK) else f"{existing} is not writable"


def _remove_abandoned(home: Path) -> None:
    """Remove the run directories of boxes that were killed: those that are ours and that nobody holds locked."""
    for lock in home.glob(f"{_PREFIX}*/lock"):
        with contextlib.suppress(OSError, SettingsError):
            status = lock.stat()
            # A box that is just starting has made its lock but may not hold it yet.
            if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _MIN_AGE_S:
                os.close(_lock(lock.parent))
                shutil.rmtree(lock.parent)


def _lock(path: Path) -> int:
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise SettingsError([f"--run-dir: another box is running in {path}"]) from None
    return descriptor
