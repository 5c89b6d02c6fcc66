"""Mixtures of experts on a GPU: rows grouped by expert, then two grouped products and a weighted sum.

A tile of rows meets one expert's matrix; experts that nobody chose are never read. The second product writes a row
for each (token, expert); a last kernel sums them in the order of the token's experts, so nothing depends on timing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gated.kernel import silu_mul
from engine.kernels.moe.grouping import RowGroups, group_rows


def moe_route(logits: Tensor, top_k: int, renormalizes: bool) -> tuple[Tensor, Tensor]:
    """Router logits[T, E] to float32 weights and int32 ids [T, top_k], best first; see the reference."""
    rows, experts = logits.shape
    weights = torch.empty(rows, top_k, dtype=torch.float32, device=logits.device)
    ids = torch.empty(rows, top_k, dtype=torch.int32, device=logits.device)
    if rows:
        _route_kernel[(rows,)](
            logits,
            weights,
            ids,
            EXPERTS=experts,
            TOP_K=top_k,
            RENORMALIZES=renormalizes,
            BLOCK=triton.next_power_of_2(experts),
            BLOCK_K=triton.next_power_of_2(top_k),
            num_warps=1,
            enable_fp_fusion=True,
        )
    return weights, ids


def moe_experts(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Weighted sum of the token's experts, x[T, K] to [T, K]; see the reference."""
    tokens, width = x.shape
    out = torch.empty(tokens, width, dtype=x.dtype, device=x.device)
    if tokens == 0:
        return out
    top_k, experts = ids.shape[1], gate_up.shape[0]
    tile = 16 if tokens * top_k <= 16 * experts else 64
    groups = group_rows(ids.flatten(), experts, tile)
    inner = silu_mul(_grouped_matmul(x, gate_up, groups, top_k))
    parts = _grouped_matmul(inner, down, groups, 1)
    _combine_kernel[(tokens, triton.cdiv(width, 1024))](
        parts, weights, out, width, TOP_K=top_k, BLOCK=1024, num_warps=4, enable_fp_fusion=True
    )
    return out


def _grouped_matmul(x: Tensor, matrices: Tensor, groups: RowGroups, rows_per_x: int) -> Tensor:
    """Row i of the result is x[i // rows_per_x] times the transposed matrix of row i's group."""
    _, width, k = matrices.shape
    out = torch.empty(groups.num_rows, width, dtype=x.dtype, device=x.device)
    columns = 64 if groups.tile == 16 else 128
    _grouped_matmul_kernel[(groups.tile_groups.shape[0], triton.cdiv(width, columns))](
        x,
        matrices,
        out,
        groups.places,
        groups.tile_groups,
        groups.num_rows,
        groups.num_groups,
        width,
        k,
        ROWS_PER_X=rows_per_x,
        ROWS=groups.tile,
        COLUMNS=columns,
        DEPTH=64,
        num_warps=4,
        num_stages=2 if x.dtype == torch.float32 else 3,
        enable_fp_fusion=True,
    )
    return out


@triton.jit
def _route_kernel(
    logits_ptr,
    weights_ptr,
    ids_ptr,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    RENORMALIZES: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One token: the best expert, then the best of the rest, TOP_K times."""
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    rank = tl.arange(0, BLOCK_K)
    inside = expert < EXPERTS
    logits = tl.load(logits_ptr + row * EXPERTS + expert, mask=inside, other=-float("inf")).to(tl.float32)
    weights = tl.exp(logits - tl.max(logits, axis=0))
    weights = tl.where(inside, weights / tl.sum(weights, axis=0), -1.0)
    chosen = tl.zeros([BLOCK_K], tl.float32)
    chosen_ids = tl.zeros([BLOCK_K], tl.int32)
    for place in tl.static_range(TOP_K):
        best = tl.max(weights, axis=0)
        best_id = tl.min(tl.where(weights == best, expert, BLOCK), axis=0)
        chosen = tl.where(rank == place, best, chosen)
        chosen_ids = tl.where(rank == place, best_id, chosen_ids)
        weights = tl.where(expert == best_id, -1.0, weights)
    if RENORMALIZES:
        chosen = chosen / tl.sum(chosen, axis=0)
    tl.store(weights_ptr + row * TOP_K + rank, chosen, mask=rank < TOP_K)
    tl.store(ids_ptr + row * TOP_K + rank, chosen_ids, mask=rank < TOP_K)


@triton.jit(do_not_specialize=["num_rows"])
def _grouped_matmul_kernel(
    x_ptr,
    matrices_ptr,
    out_ptr,
    places_ptr,
    tile_groups_ptr,
    num_rows,
    num_groups,
    width,
    k,
    ROWS_PER_X: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """One tile of rows of one group, COLUMNS columns of the group's matrix."""
    tile = tl.program_id(0)
    group = tl.load(tile_groups_ptr + tile).to(tl.int64)
    if group < num_groups:
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        row = tl.load(places_ptr + tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        has_row, has_column = (row < num_rows)[:, None], (column < width)[None, :]
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(0, k, DEPTH):
            channel = start + tl.arange(0, DEPTH)
            inside = channel < k
            x = tl.load(
                x_ptr + (row // ROWS_PER_X)[:, None] * k + channel[None, :], mask=has_row & inside[None, :], other=0.0
            )
            matrix = tl.load(
                matrices_ptr + (group * width + column)[None, :] * k + channel[:, None],
                mask=has_column & inside[:, None],
                other=0.0,
            )
            acc = tl.dot(x, matrix, acc, input_precision="ieee")
        target = out_ptr + row[:, None] * width + column[None, :]
        tl.store(target, acc.to(out_ptr.dtype.element_ty), mask=has_row & has_column)


@triton.jit
def _combine_kernel(parts_ptr, weights_ptr, out_ptr, width, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """One run of one token: its experts' rows, weighted, in order."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(TOP_K):
        part = tl.load(parts_ptr + (token * TOP_K + rank) * width + column, mask=inside, other=0.0).to(tl.float32)
        total += part * tl.load(weights_ptr + token * TOP_K + rank)
    tl.store(out_ptr + token * width + column, total.to(out_ptr.dtype.element_ty), mask=inside)
