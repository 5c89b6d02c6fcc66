"""The machine's processors while a load runs: how busy the server, the load generator and everybody else kept them.

Read from /proc; what cannot be read there is None, never a guess.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from appliance.process_stat import find_pids, read_stat

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_LISTEN = "0A"
_STRANGERS = frozenset({"docker-proxy", "systemd", "sshd"})  # listen for others, who are not their children


@dataclass(frozen=True)
class Usage:
    """Cores that were busy on average. ``other`` is what neither server nor load generator explains."""

    load_generator: float
    stolen: float  # by the hypervisor
    server: float | None
    other: float | None


class Watch:
    """Measures from when it is made until `stop`."""

    def __init__(self, server_pid: int | None) -> None:
        self._pid = server_pid
        self._started_s = time.perf_counter()
        self._own_s = time.process_time()
        self._busy_s, self._stolen_s = _machine_seconds()
        self._server_s = tree_seconds(server_pid)

    def stop(self) -> Usage:
        """What was used since then."""
        duration_s = max(time.perf_counter() - self._started_s, 1e-9)
        own_s = time.process_time() - self._own_s
        busy_s, stolen_s = _machine_seconds()
        server_s, other_s = tree_seconds(self._pid), None
        if server_s is not None and self._server_s is not None:
            server_s -= self._server_s
            other_s = max(0.0, busy_s - self._busy_s - server_s - own_s)
        return Usage(
            load_generator=own_s / duration_s,
            stolen=(stolen_s - self._stolen_s) / duration_s,
            server=None if server_s is None else server_s / duration_s,
            other=None if other_s is None else other_s / duration_s,
        )


def describe_machine() -> str:
    """Cores, processor and memory, in a line."""
    rows = (_PROC / "cpuinfo").read_text().splitlines()
    model = next((row.partition(":")[2].strip() for row in rows if row.startswith("model name")), platform.machine())
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{len(os.sched_getaffinity(0))} cores of {model}, {memory_bytes / 2**30:.0f} GiB"


def _machine_seconds() -> tuple[float, float]:
    """Busy and stolen seconds of all cores since the machine started; idle, waiting and guests are left out."""
    ticks = [int(word) for word in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, stolen = ticks[:8]
    return (user + nice + system + irq + softirq) / _TICKS, stolen / _TICKS


def tree_seconds(pid: int | None) -> float | None:
    """CPU seconds of a process and its descendants, those included that have ended; None if it is not there."""
    parents = _parents()
    if pid is None or pid not in parents:
        return None
    return sum(_cpu_seconds(member) for member in _tree(pid, parents))


def tree_memory_bytes(pid: int) -> int | None:
    """Memory of a process and its descendants, shared pages counted once (PSS); None if it can't be read."""
    total = 0
    for member in _tree(pid, _parents()):
        try:
            rows = (_PROC / str(member) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(row.split()[1]) for row in rows if row.startswith("Pss:"))
    return total or None


def _tree(pid: int, parents: dict[int, int]) -> set[int]:
    members = {pid}
    while more := {child for child, parent in parents.items() if parent in members} - members:
        members |= more
    return members


def _parents() -> dict[int, int]:
    return {pid: int(fields[1]) for pid in find_pids() if (fields := read_stat(pid))}


def _cpu_seconds(pid: int) -> float:
    # utime, stime, and those of children that have ended and were waited for
    return sum(map(int, read_stat(pid)[11:15])) / _TICKS


def find_server_pid(port: int) -> int | None:
    """The topmost process of the server that listens on a port of this machine; None if it can't be found."""
    inodes = {inode for table in ("tcp", "tcp6") for inode in _listening_inodes(table, port)}
    owner = next((pid for pid in find_pids() if inodes & _socket_inodes(pid)), None)
    if owner is None or _name(owner) in _STRANGERS:
        return None
    parents = _parents()
    ours = _ancestors(os.getpid(), parents)
    while (parent := parents.get(owner, 0)) > 1 and parent not in ours:
        owner = parent
    return owner


def _listening_inodes(table: str, port: int) -> list[str]:
    try:
        rows = (_PROC / "net" / table).read_text().splitlines()[1:]
    except OSError:
        return []
    fields = [row.split() for row in rows]
    return [row[9] for row in fields if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port]


def _socket_inodes(pid: int) -> set[str]:
    inodes = set()
    try:
        for entry in (_PROC / str(pid) / "fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    except OSError:
        pass
    return inodes


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    found = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = parents.get(pid, 0)
    return found
