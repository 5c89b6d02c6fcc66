"""Makes the `StepBatch` of a list of (context length, new tokens) rows over shuffled blocks, and random weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kernels.batch import StepBatch

CPU = torch.device("cpu")


def make_batch(rows: Sequence[tuple[int, int]], block_size: int, tables: Tensor | None = None) -> StepBatch:
    """Rows in order; `tables` [R, blocks] where the caller wants the same blocks again."""
    tables = make_tables([context for context, _ in rows], block_size) if tables is None else tables
    positions = torch.cat([torch.arange(context - new, context) for context, new in rows])
    owners = torch.cat([torch.full((new,), index) for index, (_, new) in enumerate(rows)])
    slots = tables[owners, positions // block_size] * block_size + positions % block_size
    starts = torch.tensor([0] + [new for _, new in rows]).cumsum(0)
    return StepBatch(
        positions=positions.int(),
        slot_mapping=slots.int(),
        query_start_loc=starts.int(),
        seq_lens=torch.tensor([context for context, _ in rows]).int(),
        block_tables=tables.int().contiguous(),
        block_size=block_size,
        max_query_len=max(new for _, new in rows),
        max_seq_len=max(context for context, _ in rows),
    )


def make_tables(contexts: Sequence[int], block_size: int) -> Tensor:
    """A table a row, of blocks in random order, none used twice, block 0 by nobody."""
    width = -(-max(contexts) // block_size)
    return (torch.randperm(len(contexts) * width) + 1).view(len(contexts), width)


def num_blocks(tables: Tensor) -> int:
    """Blocks that a cache needs for these tables."""
    return int(tables.max()) + 1


def make_cos_sin(length: int, head_dim: int) -> Tensor:
    """A rotary table of base 10000."""
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, head_dim, 2) / head_dim)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
