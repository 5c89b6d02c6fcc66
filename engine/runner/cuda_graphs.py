"""Decode steps as CUDA graphs: one launch instead of hundreds, which the CPU could not issue in a decode step's time.

`DecodeGraphs` owns everything about them: which batch sizes are captured, the buffers that the graphs read, how a
smaller batch is padded, and the replay. A step with any row of more than one token runs without a graph: its kernels
take longer than their launches.

Padding rows compute token 0 at position 0 and keep their keys and values in the scratch block, which belongs to no
request. Nothing that a graph launches depends on a length (see `engine.kernels.attend.kernel`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.kernels.batch import StepBatch
from engine.runner.inputs import FillTokens, IntArray, StepArrays
from engine.runner.staging import Staging

MAX_ROWS = 256  # beyond it a step takes long enough to be launched kernel by kernel
SMALL_SIZES = (1, 2, 4)
STEP = 8

RunDecode = Callable[[Tensor, StepBatch], Tensor]
"""(token_ids[S], batch) → logits[S, V]: what is captured; must not wait for the device."""


class CapturedGraph(Protocol):
    """A graph and the tensor that it writes."""

    @property
    def output(self) -> Tensor:
        """Written by each replay."""

    def replay(self) -> None:
        """Launch it."""


class GraphBackend(Protocol):
    """What captures; `CudaGraphBackend`, or a stand-in where there is no GPU."""

    def capture(self, run: Callable[[], Tensor]) -> CapturedGraph:
        """Capture what `run` launches; it reads and writes the same memory in each replay."""


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """What the graphs are made for."""

    max_rows: int
    table_width: int  # blocks of the longest context
    block_size: int
    max_model_len: int
    scratch_block: int  # a block of the cache that no request uses


def graph_sizes(max_rows: int) -> list[int]:
    """Batch sizes to capture, ascending: a batch is padded to the next one."""
    limit = min(max_rows, MAX_ROWS)
    sizes = {size for size in (*SMALL_SIZES, *range(STEP, limit + 1, STEP)) if size <= limit}
    return sorted(sizes | {limit})


class DecodeGraphs:
    """The captured decode steps of a model."""

    def __init__(self, run: RunDecode, limits: GraphLimits, staging: Staging, device: torch.device) -> None:
        self._run, self._limits, self._staging = run, limits, staging
        self.sizes = graph_sizes(limits.max_rows)
        rows = self.sizes[-1]
        # Token ids, positions, slots, lengths; as if each row were a padding row.
        self._vectors = torch.from_numpy(self._padding(rows)).to(device)
        self._tables = torch.full((rows, limits.table_width), limits.scratch_block, dtype=torch.int32, device=device)
        self._query_start_loc = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._graphs: dict[int, CapturedGraph] = {}

    def capture(self, backend: GraphBackend, progress: Callable[[float], None] | None = None) -> None:
        """Capture every size, the largest first, whose memory the others then share; tells the share that is done."""
        for done, size in enumerate(reversed(self.sizes), start=1):
            self._graphs[size] = backend.capture(lambda size=size: self._run_padded(size))  # type: ignore[misc]
            if progress is not None:
                progress(done / len(self.sizes))

    def holds(self, arrays: StepArrays) -> bool:
        """Whether a graph was captured that this step fits."""
        return bool(self._graphs) and arrays.is_decode and arrays.num_rows <= self.sizes[-1]

    def replay(self, arrays: StepArrays, fill: FillTokens | None = None) -> Tensor:
        """Logits [R, V] of a step that `holds`; overwritten by the next replay."""
        size = self.sizes[bisect_left(self.sizes, arrays.num_rows)]
        width = arrays.block_tables.shape[1]
        vectors, tables = self._staging.put([self._padded_vectors(arrays, size), self._padded_tables(arrays, size)])
        self._vectors[:, :size].copy_(vectors)
        if fill is not None:
            fill(self._vectors[0])
        self._tables[:size, :width].copy_(tables)
        graph = self._graphs[size]
        graph.replay()
        return graph.output[: arrays.num_rows]

    def _run_padded(self, size: int) -> Tensor:
        token_ids, positions, slots, seq_lens = (vector[:size] for vector in self._vectors)
        batch = StepBatch(
            positions=positions,
            slot_mapping=slots,
            query_start_loc=self._query_start_loc[: size + 1],
            seq_lens=seq_lens,
            block_tables=self._tables[:size],
            block_size=self._limits.block_size,
            max_query_len=1,
            max_seq_len=self._limits.max_model_len,
        )
        return self._run(token_ids, batch)

    def _padded_vectors(self, arrays: StepArrays, size: int) -> IntArray:
        vectors = self._padding(size)
        vectors[:, : arrays.num_rows] = arrays.token_ids, arrays.positions, arrays.slots, arrays.seq_lens
        return vectors

    def _padded_tables(self, arrays: StepArrays, size: int) -> IntArray:
        shape = (size, arrays.block_tables.shape[1])
        tables = np.full(shape, self._limits.scratch_block, dtype=np.int32)
        tables[: arrays.num_rows] = arrays.block_tables
        return tables

    def _padding(self, size: int) -> IntArray:
        vectors = np.zeros((4, size), dtype=np.int32)
        vectors[2], vectors[3] = self._limits.scratch_block * self._limits.block_size, 1
        return vectors


@dataclass(frozen=True, slots=True)
class _CudaGraph:
    graph: torch.cuda.CUDAGraph
    output: Tensor

    def replay(self) -> None:
        self.graph.replay()


class CudaGraphBackend:
    """Captures with torch; all graphs share one pool of memory, since only one runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None  # torch names no type of it

    def capture(self, run: Callable[[], Tensor]) -> CapturedGraph:
        """Run once aside, which compiles kernels and sets libraries up, then capture."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as the one that watches NCCL, may go on asking the device how far it is.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = run()
        self._pool = graph.pool()
        return _CudaGraph(graph, output)
