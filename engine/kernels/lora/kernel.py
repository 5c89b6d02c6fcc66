"""Low-rank adapters on a GPU: shrink (x A^T), then expand (… B^T) added to y, over rows grouped by adapter.

The shrunk rows are tiny and K is long, so K is split among programs; the expanding one sums the parts in order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.lora.adapters import Adapters
from engine.kernels.moe.grouping import RowGroups

SHRINK_DEPTH = 128
CHANNELS_PER_SPLIT = 1024
COLUMNS = 128


def lora_add_(y: Tensor, x: Tensor, adapters: Adapters, groups: RowGroups) -> None:
    """y[T, N] += scale · x[T, K] A^T B^T of the row's adapter, in place; see the reference."""
    tokens, k = x.shape
    if tokens == 0:
        return
    rank, width, tiles = adapters.a.shape[1], adapters.b.shape[1], groups.tile_groups.shape[0]
    block_rank = max(16, triton.next_power_of_2(rank))
    splits = triton.cdiv(k, CHANNELS_PER_SPLIT)
    parts = torch.empty(splits, tokens, rank, dtype=torch.float32, device=x.device)
    common = {"RANK": rank, "BLOCK_RANK": block_rank, "ROWS": groups.tile, "num_warps": 4, "enable_fp_fusion": True}
    _shrink_kernel[(tiles, splits)](
        x,
        adapters.a,
        parts,
        groups.places,
        groups.tile_groups,
        tokens,
        groups.num_groups,
        k,
        CHANNELS=CHANNELS_PER_SPLIT,
        DEPTH=SHRINK_DEPTH,
        num_stages=2,
        **common,
    )
    _expand_kernel[(tiles, triton.cdiv(width, COLUMNS))](
        parts,
        adapters.b,
        adapters.scales,
        y,
        groups.places,
        groups.tile_groups,
        tokens,
        groups.num_groups,
        width,
        y.stride(0),
        SPLITS=splits,
        COLUMNS=COLUMNS,
        **common,
    )


@triton.jit(do_not_specialize=["num_rows"])
def _shrink_kernel(
    x_ptr,
    a_ptr,
    parts_ptr,
    places_ptr,
    tile_groups_ptr,
    num_rows,
    num_groups,
    k,
    CHANNELS: tl.constexpr,
    DEPTH: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One tile of rows of one adapter, CHANNELS of the input: float32 [ROWS, RANK]."""
    tile, split = tl.program_id(0), tl.program_id(1)
    group = tl.load(tile_groups_ptr + tile).to(tl.int64)
    if group < num_groups:
        row = tl.load(places_ptr + tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        rank = tl.arange(0, BLOCK_RANK)
        has_row, has_rank = (row < num_rows)[:, None], (rank < RANK)[None, :]
        acc = tl.zeros([ROWS, BLOCK_RANK], tl.float32)
        for start in range(split * CHANNELS, tl.minimum(split * CHANNELS + CHANNELS, k), DEPTH):
            channel = start + tl.arange(0, DEPTH)
            inside = channel < k
            x = tl.load(x_ptr + row[:, None] * k + channel[None, :], mask=has_row & inside[None, :], other=0.0)
            a = tl.load(
                a_ptr + (group * RANK + rank)[None, :] * k + channel[:, None],
                mask=has_rank & inside[:, None],
                other=0.0,
            )
            acc = tl.dot(x, a, acc, input_precision="ieee")
        place = split.to(tl.int64) * num_rows + row
        tl.store(parts_ptr + place[:, None] * RANK + rank[None, :], acc, mask=has_row & has_rank)


@triton.jit(do_not_specialize=["num_rows"])
def _expand_kernel(
    parts_ptr,
    b_ptr,
    scales_ptr,
    y_ptr,
    places_ptr,
    tile_groups_ptr,
    num_rows,
    num_groups,
    width,
    y_stride,
    SPLITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One tile of rows of one adapter, COLUMNS columns of y."""
    tile = tl.program_id(0)
    group = tl.load(tile_groups_ptr + tile).to(tl.int64)
    if group < num_groups:
        row = tl.load(places_ptr + tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        rank = tl.arange(0, BLOCK_RANK)
        has_row, has_column = (row < num_rows)[:, None], (column < width)[None, :]
        inside = has_row & (rank < RANK)[None, :]
        inner = tl.zeros([ROWS, BLOCK_RANK], tl.float32)
        for split in tl.static_range(SPLITS):
            place = split * num_rows + row
            inner += tl.load(parts_ptr + place[:, None] * RANK + rank[None, :], mask=inside, other=0.0)
        b = tl.load(
            b_ptr + (group * width + column)[None, :] * RANK + rank[:, None],
            mask=has_column & (rank < RANK)[:, None],
            other=0.0,
        )
        update = tl.dot(inner.to(b.dtype), b, input_precision="ieee") * tl.load(scales_ptr + group)
        target = y_ptr + row[:, None] * y_stride + column[None, :]
        y = tl.load(target, mask=has_row & has_column, other=0.0).to(tl.float32)
        tl.store(target, (y + update).to(y_ptr.dtype.element_ty), mask=has_row & has_column)
