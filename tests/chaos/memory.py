"""What a box's processes hold, and whether it grows: memory, file descriptors, threads, shared memory."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.chaos.target import Target

SHARED_MEMORY = Path("/dev/shm")
MIB = 2**20


@dataclass(frozen=True)
class Held:
    """One process at one moment; its share of what it maps together with others (PSS) counts as its memory."""

    pid: int
    rss_bytes: int
    pss_bytes: int
    num_fds: int
    num_threads: int


@dataclass(frozen=True)
class Sample:
    """All processes after so many requests, while the box was at rest."""

    num_requests: int
    held: dict[str, Held]
    num_shared: int


@dataclass
class Growth:
    """The samples of a soak, and what they say."""

    samples: list[Sample] = field(default_factory=list)

    def slope(self, name: str, read: Callable[[Held], int]) -> float:
        """Units a request, by least squares over the later two thirds: the first third fills caches."""
        points = [(sample.num_requests, read(sample.held[name])) for sample in self._later if name in sample.held]
        return statistics.linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else 0.0

    def grown(self, name: str, read: Callable[[Held], int]) -> int:
        """From the median of the first half of these samples to the median of the second."""
        values = [read(sample.held[name]) for sample in self._later if name in sample.held]
        half = len(values) // 2
        return round(statistics.median(values[half:]) - statistics.median(values[: half or 1])) if values else 0

    def problems(self, most_grown_bytes: int) -> list[str]:
        """Processes that grew by more than that, were replaced, or hold more files or threads than before."""
        found = []
        for name in self.names:
            if (grown := self.grown(name, lambda held: held.pss_bytes)) > most_grown_bytes:
                found.append(f"{name} grew by {grown / MIB:.1f} MiB")
            if (files := self.grown(name, lambda held: held.num_fds)) > _MOST_FDS:
                found.append(f"{name} holds {files} more file descriptors")
            if (threads := self.grown(name, lambda held: held.num_threads)) > _MOST_THREADS:
                found.append(f"{name} has {threads} more threads")
            if len({sample.held[name].pid for sample in self.samples if name in sample.held}) > 1:
                found.append(f"{name} was replaced")
        if self.samples and self.samples[-1].num_shared > self.samples[0].num_shared:
            found.append(f"{self.samples[-1].num_shared - self.samples[0].num_shared} new files in {SHARED_MEMORY}")
        return found

    def describe(self) -> str:
        """A line a process."""
        return "\n".join(map(self._describe, self.names))

    @property
    def names(self) -> list[str]:
        """Every process that was seen."""
        return sorted({name for sample in self.samples for name in sample.held})

    @property
    def _later(self) -> Sequence[Sample]:
        return self.samples[len(self.samples) // 3 :]

    def _describe(self, name: str) -> str:
        held = [sample.held[name] for sample in self.samples if name in sample.held]
        rss, pss = (self.slope(name, read) for read in (lambda held: held.rss_bytes, lambda held: held.pss_bytes))
        return (
            f"  {name:<14} PSS {held[0].pss_bytes / MIB:7.1f} → {held[-1].pss_bytes / MIB:7.1f} MiB, slope "
            f"{pss:+8.1f} B/request (RSS {rss:+8.1f}), fds {held[0].num_fds} → {held[-1].num_fds}, "
            f"threads {held[0].num_threads} → {held[-1].num_threads}"
        )


_MOST_FDS = 8
_MOST_THREADS = 8


def take_sample(target: Target, num_requests: int) -> Sample:
    """Look at every process of the box now."""
    processes = {"engine": target.find_engine(), "API master": target.find_api_master()}
    processes |= {f"API worker {index}": process for index, process in enumerate(target.find_api_workers())}
    processes |= {"proxy master": target.find_proxy_master()}
    processes |= {f"proxy worker {index}": process for index, process in enumerate(target.find_proxy_workers())}
    processes |= {"serve": target.box.process, "supervisord": next(iter(target.box.find("supervisord")), None)}
    held: dict[str, Held] = {}
    for name, process in processes.items():
        with contextlib.suppress(psutil.Error):
            if process is not None:
                held[name] = _look(process)
    return Sample(num_requests, held, len(list(SHARED_MEMORY.iterdir())))


def _look(process: psutil.Process) -> Held:
    memory = process.memory_full_info()
    return Held(process.pid, memory.rss, memory.pss, process.num_fds(), process.num_threads())
