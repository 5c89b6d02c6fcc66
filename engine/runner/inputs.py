"""`StepInput` → tensors: what to compute, where its keys and values go, and which rows' logits are wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.kernels.batch import StepBatch

if TYPE_CHECKING:  # `make gpu-check` has no messages
    from engine.step import StepInput, StepRow

IntArray = npt.NDArray[np.int32]
FillTokens = Callable[[Tensor], object]
"""Puts what the host does not know yet into token_ids[T] on the device."""

WIDTH_STEP = 32  # blocks


@dataclass(frozen=True, slots=True)
class StepArrays:
    """One forward pass on the host: T tokens of R rows, in order."""

    token_ids: IntArray  # [T]
    positions: IntArray  # [T]
    slots: IntArray  # [T]
    query_start_loc: IntArray  # [R + 1]
    seq_lens: IntArray  # [R]
    block_tables: IntArray  # [R, widest table]
    sample_rows: npt.NDArray[np.int64]  # [n]

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.seq_lens)

    @property
    def max_query_len(self) -> int:
        """Most tokens of one row."""
        return int(np.diff(self.query_start_loc).max())

    @property
    def is_decode(self) -> bool:
        """Whether each row computes one token, which samples."""
        return len(self.token_ids) == len(self.sample_rows) == self.num_rows


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """One forward pass on the model's device."""

    token_ids: Tensor  # [T] int64 or int32
    batch: StepBatch
    sample_rows: Tensor  # [n] likewise, in row order: of each row that samples the last known token, then its draft


def make_inputs(step: StepInput, block_size: int, device: torch.device) -> ModelInputs:
    """Flatten the rows of a step, in order, and put each array on the device."""
    return place_inputs(make_arrays(step, block_size), block_size, device)


def place_inputs(
    arrays: StepArrays, block_size: int, device: torch.device, *, only_sampled: bool = False
) -> ModelInputs:
    """Each array on the device, ids and rows as int64. `only_sampled`: no other tokens' hidden states are wanted."""
    placed = [_to(array, device) for array in step_indices(arrays)]
    token_ids = torch.from_numpy(arrays.token_ids).to(device, torch.int64)
    batch = make_batch(arrays, placed, block_size)
    if only_sampled:
        batch = dataclasses.replace(batch, wanted=_to(arrays.sample_rows, device))
    return ModelInputs(token_ids, batch, torch.from_numpy(arrays.sample_rows).to(device))


class DecodeArrays:
    """`make_arrays` for decode steps, over memory that is used again as long as steps are of one size.

    Such a step is told by its `StepArrays`: those of the step before are returned again, with other numbers in them.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._arrays = _allocate(0, 0)
        self._block_ids: list[list[int]] = []  # what is in the tables

    @staticmethod
    def holds(step: StepInput) -> bool:
        """Whether each row computes one token, which is known, and samples after it."""
        return all(row.num_scheduled_tokens == 1 and row.samples and not row.awaits_token for row in step.rows)

    def make(self, step: StepInput) -> StepArrays:
        """The arrays of a step that it `holds`, until the next call; tables may be wider than any of its rows'."""
        rows, size = step.rows, self._block_size
        arrays = self._fit(len(rows), max(len(row.block_ids) for row in rows))
        positions = [row.num_computed_tokens for row in rows]
        arrays.token_ids[:] = [_last_token_id(row) for row in rows]
        arrays.positions[:] = positions
        arrays.seq_lens[:] = [position + 1 for position in positions]
        arrays.slots[:] = [
            row.block_ids[position // size] * size + position % size
            for row, position in zip(rows, positions, strict=True)
        ]
        self._write_tables(rows)
        return arrays

    def _fit(self, num_rows: int, width: int) -> StepArrays:
        if self._arrays.num_rows != num_rows or self._arrays.block_tables.shape[1] < width:
            # A row gets a block every few steps, which is no reason to begin anew.
            self._arrays = _allocate(num_rows, -(-width // WIDTH_STEP) * WIDTH_STEP)
            self._block_ids = [[] for _ in range(num_rows)]
        return self._arrays

    def _write_tables(self, rows: list[StepRow]) -> None:
        for index, row in enumerate(rows):
            if self._block_ids[index] != row.block_ids:
                self._block_ids[index] = row.block_ids.copy()
                table = self._arrays.block_tables[index]
                table[: len(row.block_ids)] = row.block_ids
                table[len(row.block_ids) :] = 0


def _allocate(num_rows: int, width: int) -> StepArrays:
    return StepArrays(
        token_ids=np.zeros(num_rows, dtype=np.int32),
        positions=np.zeros(num_rows, dtype=np.int32),
        slots=np.zeros(num_rows, dtype=np.int32),
        query_start_loc=np.arange(num_rows + 1, dtype=np.int32),
        seq_lens=np.zeros(num_rows, dtype=np.int32),
        block_tables=np.zeros((num_rows, width), dtype=np.int32),
        sample_rows=np.arange(num_rows),
    )


def _last_token_id(row: StepRow) -> int:
    return row.output_token_ids[-1] if row.output_token_ids else row.prompt_token_ids[-1]


def make_arrays(step: StepInput, block_size: int) -> StepArrays:
    """Flatten the rows of a step, in order."""
    counts = np.array([row.num_scheduled_tokens for row in step.rows], dtype=np.int32)
    starts = np.array([row.num_computed_tokens for row in step.rows], dtype=np.int32)
    query_start_loc = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start_loc[1:])
    owners = np.repeat(np.arange(len(counts)), counts)  # row of each token
    positions = np.arange(query_start_loc[-1], dtype=np.int32) - query_start_loc[owners] + starts[owners]
    tables = make_block_tables(step.rows)
    token_ids = [token_id for row in step.rows for token_id in scheduled_token_ids(row)]
    return StepArrays(
        token_ids=np.array(token_ids, dtype=np.int32),
        positions=positions,
        slots=tables[owners, positions // block_size] * block_size + positions % block_size,
        query_start_loc=query_start_loc,
        seq_lens=starts + counts,
        block_tables=tables,
        sample_rows=sampled_tokens(step.rows, query_start_loc),
    )


def step_indices(arrays: StepArrays) -> list[IntArray]:
    """What `make_batch` wants on the device, in its order."""
    return [arrays.positions, arrays.slots, arrays.query_start_loc, arrays.seq_lens, arrays.block_tables]


def make_batch(arrays: StepArrays, placed: list[Tensor], block_size: int) -> StepBatch:
    """The batch over the tensors of `step_indices`."""
    positions, slots, query_start_loc, seq_lens, block_tables = placed
    return StepBatch(
        positions=positions,
        slot_mapping=slots,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        block_tables=block_tables,
        block_size=block_size,
        max_query_len=arrays.max_query_len,
        max_seq_len=int(arrays.seq_lens.max()),
    )


def sampled_tokens(rows: list[StepRow], query_start_loc: IntArray) -> npt.NDArray[np.int64]:
    """Indices of the tokens whose logits are wanted."""
    counts = np.array([row.samples + len(row.draft_token_ids) for row in rows], dtype=np.int64)
    ends = np.cumsum(counts)
    return np.repeat(query_start_loc[1:] - ends, counts) + np.arange(ends[-1])


def make_block_tables(rows: list[StepRow]) -> IntArray:
    """[R, widest table], padded with 0."""
    tables = np.zeros((len(rows), max(len(row.block_ids) for row in rows)), dtype=np.int32)
    for index, row in enumerate(rows):
        tables[index, : len(row.block_ids)] = row.block_ids
    return tables


def scheduled_token_ids(row: StepRow) -> list[int]:
    """The tokens that this step computes for the row; 0 for one that is awaited."""
    if row.awaits_token:
        return [0]
    start, num_prompt = row.num_computed_tokens, len(row.prompt_token_ids)
    end = start + row.num_scheduled_tokens
    if end <= num_prompt:
        return row.prompt_token_ids[start:end]
    known = row.prompt_token_ids[start:] + row.output_token_ids[max(0, start - num_prompt) : end - num_prompt]
    return known + row.draft_token_ids


def _to(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(device)
