"""`StepInput` → tensors: what to compute, where its keys and values go, and which rows' logits are wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


def place_inputs(arrays: StepArrays, block_size: int, device: torch.device) -> ModelInputs:
    """Each array on the device, ids and rows as int64."""
    placed = [_to(array, device) for array in step_indices(arrays)]
    token_ids = torch.from_numpy(arrays.token_ids).to(device, torch.int64)
    return ModelInputs(
        token_ids, make_batch(arrays, placed, block_size), torch.from_numpy(arrays.sample_rows).to(device)
    )


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


def _to(array: IntArray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(device)
