"""`StepInput` → tensors: what to compute, where its keys and values go, and which rows' logits are wanted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.kernels.batch import StepBatch
from engine.step import StepInput, StepRow

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """One forward pass."""

    token_ids: Tensor  # [T] int64
    batch: StepBatch
    sample_rows: Tensor  # [n] int64, in row order: of each row that samples the last known token, then its draft


def make_inputs(step: StepInput, block_size: int, device: torch.device) -> ModelInputs:
    """Flatten the rows of a step, in order."""
    counts = np.array([row.num_scheduled_tokens for row in step.rows], dtype=np.int32)
    starts = np.array([row.num_computed_tokens for row in step.rows], dtype=np.int32)
    query_start_loc = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start_loc[1:])
    owners = np.repeat(np.arange(len(counts)), counts)  # row of each token
    positions = np.arange(query_start_loc[-1], dtype=np.int32) - query_start_loc[owners] + starts[owners]
    tables = make_block_tables(step.rows)
    slots = tables[owners, positions // block_size] * block_size + positions % block_size
    batch = StepBatch(
        positions=_to(positions, device),
        slot_mapping=_to(slots, device),
        query_start_loc=_to(query_start_loc, device),
        seq_lens=_to(starts + counts, device),
        block_tables=_to(tables, device),
        block_size=block_size,
        max_query_len=int(counts.max()),
        max_seq_len=int((starts + counts).max()),
    )
    token_ids = [token_id for row in step.rows for token_id in scheduled_token_ids(row)]
    sampled = sampled_tokens(step.rows, query_start_loc)
    return ModelInputs(
        torch.tensor(token_ids, dtype=torch.int64).to(device), batch, torch.from_numpy(sampled).to(device)
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
    """The tokens that this step computes for the row."""
    start, num_prompt = row.num_computed_tokens, len(row.prompt_token_ids)
    end = start + row.num_scheduled_tokens
    if end <= num_prompt:
        return row.prompt_token_ids[start:end]
    known = row.prompt_token_ids[start:] + row.output_token_ids[max(0, start - num_prompt) : end - num_prompt]
    return known + row.draft_token_ids


def _to(array: IntArray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(device)
