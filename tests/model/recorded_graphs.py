"""What stands in for CUDA graphs where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class RecordedGraph:
    """Runs again what was captured: it reads the same buffers and writes the same output, as a graph does."""

    def __init__(self, run: Callable[[], Tensor]) -> None:
        self._run, self.output, self.replays = run, run(), 0

    def replay(self) -> None:
        self.replays += 1
        self.output.copy_(self._run())


class RecordingBackend:
    def __init__(self) -> None:
        self.graphs: list[RecordedGraph] = []

    def capture(self, run: Callable[[], Tensor]) -> RecordedGraph:
        self.graphs.append(RecordedGraph(run))
        return self.graphs[-1]
