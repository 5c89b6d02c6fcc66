"""/proc/PID/stat, as the kernel writes it for each process."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")


def read_stat(pid: int | str) -> list[str]:
    """The fields from the state on; empty where there is no such process. The name before them may hold anything."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def find_pids() -> list[int]:
    """Those of all processes."""
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
