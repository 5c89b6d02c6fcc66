"""How much memory a process may still take: the machine's, or less inside a container."""

from __future__ import annotations

import re
from pathlib import Path

_CGROUPS = (  # (limit, used), version 2 and version 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_UNITS = ((1024**3, "GiB"), (1024**2, "MiB"))


def available_memory_bytes() -> int:
    """Memory that can be had without swapping."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    available = int(match[1]) * 1024 if match else 0
    for limit_file, used_file in _CGROUPS:
        limit = _number(Path(limit_file))
        if limit is not None:
            available = min(available, max(0, limit - (_number(Path(used_file)) or 0)))
    return available


def memory_limit_bytes() -> int:
    """Memory that there is: the machine's, or the container's limit."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    total = int(match[1]) * 1024 if match else 0
    limits = [limit for limit_file, _ in _CGROUPS if (limit := _number(Path(limit_file))) is not None]
    return min([total, *limits])


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # not this version, or "max"
        return None


def describe_bytes(count: int) -> str:
    """As people say it."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
