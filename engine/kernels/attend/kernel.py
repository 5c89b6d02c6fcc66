"""Attention on a GPU: what happens to a step's queries, keys and values between the two projections.

Three kernels. `rotate_and_store` normalises and rotates q and k and writes k and v to their slots, in one pass over
qkv. `_prefill_kernel` takes tiles of (tokens × the heads of one KV head) of rows with several tokens; `_decode_kernel`
takes rows with one token, their context split among programs, and `_merge_kernel` puts the splits together. A mixed
step runs both, each leaving the other's rows alone. No launch depends on a length that is only known on the device,
so that a CUDA graph of a step stays right: grids follow from the shapes of the batch's tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.attend.cache import KVCache, kv_block_bytes, make_kv_cache
from engine.kernels.batch import AttentionSpec, StepBatch
from engine.kernels.chip import Chip, chip_of
from engine.kernels.elementwise import LARGEST_CODE

__all__ = ["attend", "attend_invariant", "kv_block_bytes", "make_kv_cache", "rotate_and_store"]

LOG2_E = 1.4426950408889634
MAX_SPLITS = 32
PROGRAMS_PER_MULTIPROCESSOR = 3


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of queries and keys that a program holds at once, and how many warps work on them."""

    queries: int
    keys: int
    warps: int
    stages: int


def attend(
    qkv: Tensor,
    kv_layer: KVCache,
    batch: StepBatch,
    cos_sin: Tensor,
    spec: AttentionSpec,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
) -> Tensor:
    """qkv[T, (H+2KV)*D] to [T, H*D]; the step's keys and values are written to kv_layer first."""
    q = rotate_and_store(qkv, kv_layer, batch, cos_sin, spec, q_norm, k_norm)
    out = torch.empty_like(q)
    if q.shape[0]:
        is_mixed = batch.max_query_len > 1
        if is_mixed:
            chip, is_narrow = chip_of(q.device), kv_layer.is_quantized
            tile = prefill_tile(spec, batch.max_query_len, q.dtype, chip, is_narrow=is_narrow)
            _prefill(q, kv_layer, batch, spec, out, tile, skips_single=True)
        _decode(q, kv_layer, batch, spec, out, is_mixed=is_mixed)
    return out.view(q.shape[0], -1)


def attend_invariant(
    qkv: Tensor,
    kv_layer: KVCache,
    batch: StepBatch,
    cos_sin: Tensor,
    spec: AttentionSpec,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
) -> Tensor:
    """The same, one kernel and one tile for every row: a token's sums run over its keys in one order, always."""
    q = rotate_and_store(qkv, kv_layer, batch, cos_sin, spec, q_norm, k_norm)
    out = torch.empty_like(q)
    if q.shape[0]:
        _prefill(q, kv_layer, batch, spec, out, invariant_tile(spec, q.dtype, chip_of(q.device)), skips_single=False)
    return out.view(q.shape[0], -1)


def prefill_tile(spec: AttentionSpec, max_query_len: int, dtype: torch.dtype, chip: Chip, *, is_narrow: bool) -> Tile:
    """As many query rows as the registers hold, fewer where the step has fewer."""
    group = spec.num_heads // spec.num_kv_heads
    wanted = triton.next_power_of_2(max(16, min(max_query_len * group, 128)))
    if _is_big(spec, dtype):
        return Tile(min(wanted, 64), 32, 4 if wanted < 64 else 8, 1 if chip.shared_bytes < 128 << 10 else 2)
    # Masks and scales take registers, which products before Hopper's, whose operands are in registers, haven't left.
    is_old = chip.capability < 90
    if is_narrow and is_old:
        return Tile(min(wanted, 64), 32, 4, 2)
    is_masked = spec.sliding_window is not None or spec.head_dim not in (64, 128)
    return Tile(wanted, 32 if is_masked and is_old else 64, 4 if wanted < 128 else 8, 2)


def invariant_tile(spec: AttentionSpec, dtype: torch.dtype, chip: Chip) -> Tile:
    """The only tile of the batch-invariant mode; what decides it is the same for every step of a model."""
    if _is_big(spec, dtype):
        return Tile(64, 32, 8, 1)
    return Tile(64, 64 if chip.capability >= 90 else 32, 4, 2)


def _is_big(spec: AttentionSpec, dtype: torch.dtype) -> bool:
    return dtype == torch.float32 or spec.head_dim > 128


def decode_tile(spec: AttentionSpec, dtype: torch.dtype) -> Tile:
    """One token's heads; matrix instructions want 16 rows, even where a group has fewer."""
    group = triton.next_power_of_2(spec.num_heads // spec.num_kv_heads)
    is_big = _is_big(spec, dtype)
    return Tile(max(16, group), 32 if is_big else 64, 4, 2 if is_big else 3)


def count_splits(num_rows: int, num_kv_heads: int, max_tiles: int, chip: Chip) -> int:
    """Programs among which a row's context is split: enough to fill the chip, a power of two."""
    wanted = PROGRAMS_PER_MULTIPROCESSOR * chip.num_multiprocessors // (num_rows * num_kv_heads)
    return max(1, min(_floor_power_of_2(wanted), triton.next_power_of_2(max_tiles), MAX_SPLITS))


def _floor_power_of_2(value: int) -> int:
    return 1 << max(0, value.bit_length() - 1)


def rotate_and_store(
    qkv: Tensor,
    kv_layer: KVCache,
    batch: StepBatch,
    cos_sin: Tensor,
    spec: AttentionSpec,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
) -> Tensor:
    """Queries of qkv[T, (H+2KV)*D], normalised and rotated, as [T, H, D]; k and v go to the batch's slots."""
    tokens, heads = qkv.shape[0], spec.num_heads + 2 * spec.num_kv_heads
    q = torch.empty(tokens, spec.num_heads, spec.head_dim, dtype=qkv.dtype, device=qkv.device)
    if tokens == 0:
        return q
    half = triton.next_power_of_2(spec.head_dim // 2)
    block_heads = max(1, min(triton.next_power_of_2(heads), 1024 // half))
    _rotate_and_store_kernel[(tokens, triton.cdiv(heads, block_heads))](
        qkv,
        q,
        kv_layer.keys,
        kv_layer.values,
        kv_layer.key_scales,
        kv_layer.value_scales,
        batch.positions,
        batch.slot_mapping,
        cos_sin,
        q_norm,
        k_norm,
        spec.norm_eps,
        NUM_HEADS=spec.num_heads,
        NUM_KV_HEADS=spec.num_kv_heads,
        HEAD_DIM=spec.head_dim,
        BLOCK_SIZE=batch.block_size,
        LARGEST_CODE=LARGEST_CODE.get(kv_layer.keys.dtype, 0.0),
        IS_INTEGER=kv_layer.keys.dtype == torch.int8,
        BLOCK_HEADS=block_heads,
        BLOCK_HALF=half,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return q


def _prefill(
    q: Tensor, cache: KVCache, batch: StepBatch, spec: AttentionSpec, out: Tensor, tile: Tile, *, skips_single: bool
) -> None:
    group = spec.num_heads // spec.num_kv_heads
    queries = max(tile.queries, triton.next_power_of_2(group))
    tokens_per_tile = queries // group
    num_rows = batch.seq_lens.shape[0]
    # Every row starts a tile of its own: at most one more than whole tiles for each.
    tiles = q.shape[0] // tokens_per_tile + num_rows
    _prefill_kernel[(tiles, spec.num_kv_heads)](
        q,
        cache.keys,
        cache.values,
        cache.key_scales,
        cache.value_scales,
        out,
        batch.block_tables,
        batch.query_start_loc,
        batch.seq_lens,
        num_rows,
        batch.block_tables.stride(0),
        spec.scale,
        TOKENS_PER_TILE=tokens_per_tile,
        SKIPS_SINGLE=skips_single,
        **_constants(spec, batch, Tile(queries, tile.keys, tile.warps, tile.stages)),
    )


def _decode(q: Tensor, cache: KVCache, batch: StepBatch, spec: AttentionSpec, out: Tensor, *, is_mixed: bool) -> None:
    tile, num_rows = decode_tile(spec, q.dtype), batch.seq_lens.shape[0]
    max_tiles = triton.cdiv(batch.max_seq_len, tile.keys)
    splits = count_splits(num_rows, spec.num_kv_heads, max_tiles, chip_of(q.device))
    parts, logs = out, out
    if splits > 1:
        parts = torch.empty(num_rows, spec.num_heads, splits, spec.head_dim, dtype=torch.float32, device=q.device)
        logs = torch.empty(num_rows, spec.num_heads, splits, dtype=torch.float32, device=q.device)
    _decode_kernel[(num_rows, spec.num_kv_heads, splits)](
        q,
        cache.keys,
        cache.values,
        cache.key_scales,
        cache.value_scales,
        parts,
        logs,
        batch.block_tables,
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables.stride(0),
        spec.scale,
        SPLITS=splits,
        IS_MIXED=is_mixed,
        **_constants(spec, batch, tile),
    )
    if splits > 1:
        _merge_kernel[(num_rows, spec.num_heads)](
            parts,
            logs,
            out,
            batch.query_start_loc,
            NUM_HEADS=spec.num_heads,
            HEAD_DIM=spec.head_dim,
            BLOCK_DIM=triton.next_power_of_2(spec.head_dim),
            SPLITS=splits,
            IS_MIXED=is_mixed,
            num_warps=4,
            enable_fp_fusion=True,
        )


def _constants(spec: AttentionSpec, batch: StepBatch, tile: Tile) -> dict[str, int | float | bool]:
    return {
        "NUM_HEADS": spec.num_heads,
        "NUM_KV_HEADS": spec.num_kv_heads,
        "HEAD_DIM": spec.head_dim,
        "BLOCK_DIM": triton.next_power_of_2(spec.head_dim),
        "BLOCK_SIZE": batch.block_size,
        "WINDOW": spec.sliding_window or 0,
        "SOFT_CAP": spec.soft_cap or 0.0,
        "TILE_QUERIES": tile.queries,
        "TILE_KEYS": tile.keys,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
        "enable_fp_fusion": True,
    }


@triton.jit
def _rotate_and_store_kernel(
    qkv_ptr,
    q_ptr,
    keys_ptr,
    values_ptr,
    key_scales_ptr,
    value_scales_ptr,
    positions_ptr,
    slots_ptr,
    cos_sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    norm_eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    LARGEST_CODE: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """One token, BLOCK_HEADS of its q, k and v heads as two tiles [heads, D/2]: the halves that turn together."""
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    column = tl.arange(0, BLOCK_HALF)
    in_half = column < HALF
    inside = (head < NUM_HEADS + 2 * NUM_KV_HEADS)[:, None] & in_half[None, :]
    is_query = (head < NUM_HEADS)[:, None]
    is_value = (head >= NUM_HEADS + NUM_KV_HEADS)[:, None]

    source = qkv_ptr + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + head)[:, None] * HEAD_DIM + column[None, :]
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)

    if q_norm_ptr is not None:
        power = (tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / HEAD_DIM
        scale = tl.rsqrt(power + norm_eps)[:, None]
        q_first = tl.load(q_norm_ptr + column, mask=in_half, other=0.0).to(tl.float32)[None, :]
        q_second = tl.load(q_norm_ptr + HALF + column, mask=in_half, other=0.0).to(tl.float32)[None, :]
        k_first = tl.load(k_norm_ptr + column, mask=in_half, other=0.0).to(tl.float32)[None, :]
        k_second = tl.load(k_norm_ptr + HALF + column, mask=in_half, other=0.0).to(tl.float32)[None, :]
        first_normed = _rounded(_rounded(first * scale, q_ptr) * tl.where(is_query, q_first, k_first), q_ptr)
        second_normed = _rounded(_rounded(second * scale, q_ptr) * tl.where(is_query, q_second, k_second), q_ptr)
        first = tl.where(is_value, first, first_normed)
        second = tl.where(is_value, second, second_normed)

    position = tl.load(positions_ptr + token).to(tl.int64)
    cos = tl.load(cos_sin_ptr + position * HEAD_DIM + column, mask=in_half, other=0.0)[None, :]
    sin = tl.load(cos_sin_ptr + position * HEAD_DIM + HALF + column, mask=in_half, other=0.0)[None, :]
    turned_first = tl.where(is_value, first, first * cos - second * sin)
    turned_second = tl.where(is_value, second, second * cos + first * sin)

    target = q_ptr + (token * NUM_HEADS + head)[:, None] * HEAD_DIM + column[None, :]
    tl.store(target, turned_first.to(q_ptr.dtype.element_ty), mask=inside & is_query)
    tl.store(target + HALF, turned_second.to(q_ptr.dtype.element_ty), mask=inside & is_query)

    slot = tl.load(slots_ptr + token).to(tl.int64)
    kv_head = tl.where(head < NUM_HEADS + NUM_KV_HEADS, head - NUM_HEADS, head - NUM_HEADS - NUM_KV_HEADS)
    place = (slot // BLOCK_SIZE * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE
    if LARGEST_CODE > 0:
        largest = tl.maximum(tl.max(tl.abs(turned_first), axis=1), tl.max(tl.abs(turned_second), axis=1))
        code_scale = tl.where(largest > 0, tl.div_rn(largest, tl.full([BLOCK_HEADS], LARGEST_CODE, tl.float32)), 1.0)
        is_key_head = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
        is_value_head = (head >= NUM_HEADS + NUM_KV_HEADS) & (head < NUM_HEADS + 2 * NUM_KV_HEADS)
        tl.store(key_scales_ptr + place, code_scale, mask=is_key_head)
        tl.store(value_scales_ptr + place, code_scale, mask=is_value_head)
        wide = code_scale[:, None] + tl.zeros([BLOCK_HEADS, BLOCK_HALF], tl.float32)
        turned_first = tl.div_rn(turned_first, wide)
        turned_second = tl.div_rn(turned_second, wide)
        if IS_INTEGER:
            turned_first = tl.floor(turned_first + 0.5)
            turned_second = tl.floor(turned_second + 0.5)
        else:
            # A quotient that rounds past the largest code would become NaN.
            turned_first = tl.minimum(tl.maximum(turned_first, -LARGEST_CODE), LARGEST_CODE)
            turned_second = tl.minimum(tl.maximum(turned_second, -LARGEST_CODE), LARGEST_CODE)
    offset = place[:, None] * HEAD_DIM + column[None, :]
    is_key = inside & ((head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS))[:, None]
    tl.store(keys_ptr + offset, turned_first.to(keys_ptr.dtype.element_ty), mask=is_key)
    tl.store(keys_ptr + offset + HALF, turned_second.to(keys_ptr.dtype.element_ty), mask=is_key)
    tl.store(values_ptr + offset, turned_first.to(keys_ptr.dtype.element_ty), mask=inside & is_value)
    tl.store(values_ptr + offset + HALF, turned_second.to(keys_ptr.dtype.element_ty), mask=inside & is_value)


@triton.jit
def _rounded(x, like_ptr):
    """x in float32, rounded to what like_ptr points to."""
    return x.to(like_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def _attend_to(
    q,
    position,
    keys_ptr,
    values_ptr,
    key_scales_ptr,
    value_scales_ptr,
    table_ptr,
    kv_head,
    scale,
    begin,
    end,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    """Queries [rows, D] at position [rows] over keys begin … end - 1: running peak, total and weighted values.

    The online softmax of FlashAttention (arXiv 2205.14135), in powers of two. Rows that see no key keep peak -inf.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    column = tl.arange(0, BLOCK_DIM)
    in_dim = column < HEAD_DIM
    peak = tl.full([TILE_QUERIES], -float("inf"), tl.float32)
    total = tl.zeros([TILE_QUERIES], tl.float32)
    weighted = tl.zeros([TILE_QUERIES, BLOCK_DIM], tl.float32)
    for start in range(begin, end, TILE_KEYS):
        key = start + tl.arange(0, TILE_KEYS)
        exists = key < end
        block = tl.load(table_ptr + key // BLOCK_SIZE, mask=exists, other=0).to(tl.int64)
        place = (block * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + key % BLOCK_SIZE
        offset = place * HEAD_DIM
        # What lies past the end may be anything, NaN too, and 0 * NaN is NaN: never load it.
        k = tl.load(keys_ptr + offset[None, :] + column[:, None], mask=exists[None, :] & in_dim[:, None], other=0.0)
        if key_scales_ptr is not None:
            k = k.to(tl.float32).to(q.dtype)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if key_scales_ptr is not None:
            scores *= tl.load(key_scales_ptr + place, mask=exists, other=0.0)[None, :]
        if SOFT_CAP > 0:
            scores = SOFT_CAP * (1.0 - 2.0 / (tl.exp(tl.minimum(scores * (2.0 / SOFT_CAP), 80.0)) + 1.0))
        is_visible = exists[None, :] & (key[None, :] <= position[:, None])
        if WINDOW > 0:
            is_visible = is_visible & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(is_visible, scores * LOG2_E, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        finite_peak = tl.where(new_peak > -float("inf"), new_peak, 0.0)
        weights = tl.exp2(scores - finite_peak[:, None])
        fade = tl.exp2(peak - finite_peak)
        total = total * fade + tl.sum(weights, axis=1)
        v = tl.load(values_ptr + offset[:, None] + column[None, :], mask=exists[:, None] & in_dim[None, :], other=0.0)
        if value_scales_ptr is not None:
            v = v.to(tl.float32).to(q.dtype)
            weights *= tl.load(value_scales_ptr + place, mask=exists, other=0.0)[None, :]
        weighted = tl.dot(weights.to(v.dtype), v, weighted * fade[:, None], input_precision="ieee")
        peak = new_peak
    return peak, total, weighted


@triton.jit(do_not_specialize=["num_rows", "table_stride"])
def _prefill_kernel(
    q_ptr,
    keys_ptr,
    values_ptr,
    key_scales_ptr,
    value_scales_ptr,
    out_ptr,
    tables_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    num_rows,
    table_stride,
    scale,
    TOKENS_PER_TILE: tl.constexpr,
    SKIPS_SINGLE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    """One tile: TOKENS_PER_TILE tokens of one row, times the query heads that share a KV head."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    index, kv_head = tl.program_id(0), tl.program_id(1)
    # Row r's tiles start at query_start_loc[r] // TOKENS_PER_TILE + r: find the last row that starts at or before us.
    low, high = 0, num_rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start_loc_ptr + middle) // TOKENS_PER_TILE + middle <= index:
            low = middle + 1
        else:
            high = middle
    row = low - 1
    query_start = tl.load(query_start_loc_ptr + row)
    count = tl.load(query_start_loc_ptr + row + 1) - query_start
    first = (index - (query_start // TOKENS_PER_TILE + row)) * TOKENS_PER_TILE
    is_ours = first < count
    if SKIPS_SINGLE:
        is_ours = is_ours & (count > 1)
    if is_ours:
        seq_len = tl.load(seq_lens_ptr + row)
        lane = tl.arange(0, TILE_QUERIES)
        column = tl.arange(0, BLOCK_DIM)
        token = first + lane // GROUP
        is_query = (lane < TOKENS_PER_TILE * GROUP) & (token < count)
        place = (query_start + token).to(tl.int64) * NUM_HEADS + kv_head * GROUP + lane % GROUP
        offset = place[:, None] * HEAD_DIM + column[None, :]
        inside = is_query[:, None] & (column < HEAD_DIM)[None, :]
        q = tl.load(q_ptr + offset, mask=inside, other=0.0)
        earliest = seq_len - count + first
        begin = 0
        if WINDOW > 0:
            begin = tl.maximum(earliest - WINDOW + 1, 0) // TILE_KEYS * TILE_KEYS
        _peak, total, weighted = _attend_to(
            q,
            seq_len - count + token,
            keys_ptr,
            values_ptr,
            key_scales_ptr,
            value_scales_ptr,
            tables_ptr + row * table_stride,
            kv_head,
            scale,
            begin,
            tl.minimum(seq_len, earliest + TOKENS_PER_TILE),
            NUM_KV_HEADS,
            HEAD_DIM,
            BLOCK_DIM,
            BLOCK_SIZE,
            WINDOW,
            SOFT_CAP,
            TILE_QUERIES,
            TILE_KEYS,
        )
        result = weighted / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out_ptr + offset, result.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["table_stride"])
def _decode_kernel(
    q_ptr,
    keys_ptr,
    values_ptr,
    key_scales_ptr,
    value_scales_ptr,
    parts_ptr,
    logs_ptr,
    tables_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    table_stride,
    scale,
    SPLITS: tl.constexpr,
    IS_MIXED: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    """One row's only token, the query heads that share a KV head, one split of its context.

    With one split the result goes to parts_ptr as the finished output [T, H, D]; else as float32 [R, H, SPLITS, D]
    beside the logarithm of its total weight [R, H, SPLITS].
    """
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = tl.load(query_start_loc_ptr + row)
    is_ours = True
    if IS_MIXED:
        is_ours = tl.load(query_start_loc_ptr + row + 1) - token == 1
    if is_ours:
        seq_len = tl.load(seq_lens_ptr + row)
        begin = 0
        if WINDOW > 0:
            begin = tl.maximum(seq_len - WINDOW, 0) // TILE_KEYS * TILE_KEYS
        share = tl.cdiv(tl.cdiv(seq_len - begin, TILE_KEYS), SPLITS) * TILE_KEYS
        lane = tl.arange(0, TILE_QUERIES)
        column = tl.arange(0, BLOCK_DIM)
        head = kv_head * GROUP + lane
        inside = (lane < GROUP)[:, None] & (column < HEAD_DIM)[None, :]
        place = token.to(tl.int64) * NUM_HEADS + head
        q = tl.load(q_ptr + place[:, None] * HEAD_DIM + column[None, :], mask=inside, other=0.0)
        peak, total, weighted = _attend_to(
            q,
            tl.zeros([TILE_QUERIES], tl.int32) + (seq_len - 1),
            keys_ptr,
            values_ptr,
            key_scales_ptr,
            value_scales_ptr,
            tables_ptr + row * table_stride,
            kv_head,
            scale,
            begin + split * share,
            tl.minimum(begin + split * share + share, seq_len),
            NUM_KV_HEADS,
            HEAD_DIM,
            BLOCK_DIM,
            BLOCK_SIZE,
            WINDOW,
            SOFT_CAP,
            TILE_QUERIES,
            TILE_KEYS,
        )
        some = tl.where(total > 0, total, 1.0)
        result = weighted / some[:, None]
        if SPLITS == 1:
            target = parts_ptr + place[:, None] * HEAD_DIM + column[None, :]
        else:
            part = (row.to(tl.int64) * NUM_HEADS + head) * SPLITS + split
            target = parts_ptr + part[:, None] * HEAD_DIM + column[None, :]
            # A split without keys has peak -inf, hence no weight.
            tl.store(logs_ptr + part, peak + tl.log2(some), mask=lane < GROUP)
        tl.store(target, result.to(parts_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _merge_kernel(
    parts_ptr,
    logs_ptr,
    out_ptr,
    query_start_loc_ptr,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    IS_MIXED: tl.constexpr,
):
    """One row's head: its splits, weighted by their totals."""
    row, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(query_start_loc_ptr + row)
    is_ours = True
    if IS_MIXED:
        is_ours = tl.load(query_start_loc_ptr + row + 1) - token == 1
    if is_ours:
        split = tl.arange(0, SPLITS)
        column = tl.arange(0, BLOCK_DIM)
        inside = column < HEAD_DIM
        part = (row.to(tl.int64) * NUM_HEADS + head) * SPLITS + split
        logs = tl.load(logs_ptr + part)
        weights = tl.exp2(logs - tl.max(logs, axis=0))
        parts = tl.load(parts_ptr + part[:, None] * HEAD_DIM + column[None, :], mask=inside[None, :], other=0.0)
        result = tl.sum(parts * weights[:, None], axis=0) / tl.sum(weights, axis=0)
        target = out_ptr + (token.to(tl.int64) * NUM_HEADS + head) * HEAD_DIM + column
        tl.store(target, result.to(out_ptr.dtype.element_ty), mask=inside)
