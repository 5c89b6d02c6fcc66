"""Times work on the device without the time that the CPU takes to launch it: captured in a CUDA graph, replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

MIN_SECONDS = 0.08  # of replays for one figure
REPEATS = 3  # of which the best counts


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this card does at best, measured by torch."""

    copy_bytes: float  # a second, read and written
    matmul_flops: float  # a second, bfloat16


def time_each(runs: Sequence[Callable[[], object]]) -> float:
    """Seconds of one of `runs`, which follow each other in one graph (and so find no other's data in the cache)."""
    for run in runs[:2]:
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    return time_launches(graph.replay) / len(runs)


def time_launches(run: Callable[[], object]) -> float:
    """Seconds of `run`, from the first to the last thing that it makes the device do."""
    run()
    seconds = _seconds(run, 1)
    count = max(1, int(MIN_SECONDS / max(seconds, 1e-6)))
    return min(_seconds(run, count) / count for _ in range(REPEATS))


def _seconds(run: Callable[[], object], count: int) -> float:
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(count):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def measure_ceilings() -> Ceilings:
    """A copy of 1 GiB and a square product, both by torch."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy_s = time_launches(lambda: target.copy_(source))
    size = 8192
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    matmul_s = time_launches(lambda: a @ b)
    return Ceilings(2 * source.numel() / copy_s, 2 * size**3 / matmul_s)
