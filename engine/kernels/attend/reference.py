"""The truth: rotary embedding and paged attention in plain torch, one request and one tile of its tokens at a time.

Every product has the shape [KV, QUERY_TILE * H / KV, D] x [KV, D, KEY_TILE] (and its mirror image), and tiles of keys
start at multiples of `KEY_TILE` of the request's own positions, so that a token's sums run in an order that depends on
its position alone. Tiles past a token's position add exact zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.batch import AttentionSpec, StepBatch
from engine.kernels.elementwise import LARGEST_CODE, exp_, rms_norm, round_to_codes
from engine.kernels.linear.reference import pad_rows

QUERY_TILE = 16  # tokens
KEY_TILE = 128  # positions


@dataclass(frozen=True, slots=True)
class NarrowCache:
    """What a cache of a narrow type would give back: float32 values, each rounded as the type rounds it."""

    values: Tensor  # like a plain cache
    dtype: torch.dtype


def kv_block_bytes(block_size: int, num_kv_heads: int, head_dim: int, num_layers: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    width = torch.float32.itemsize if dtype in LARGEST_CODE else dtype.itemsize
    return 2 * block_size * num_kv_heads * head_dim * num_layers * width


def make_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    num_layers: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[Tensor] | list[NarrowCache]:
    """A layer's cache is [2 (keys, values), num_blocks, block_size, KV, D]."""
    shape = (num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim)
    if dtype in LARGEST_CODE:
        return [NarrowCache(layer, dtype) for layer in torch.zeros(shape, device=device).unbind(0)]
    return list(torch.zeros(shape, dtype=dtype, device=device).unbind(0))


def attend(
    qkv: Tensor,
    kv_layer: Tensor | NarrowCache,
    batch: StepBatch,
    cos_sin: Tensor,
    spec: AttentionSpec,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
) -> Tensor:
    """qkv[T, (H+2KV)*D] to [T, H*D]; keys and values of the step's tokens are written to kv_layer first."""
    heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
    q, k, v = torch.split(qkv.view(qkv.shape[0], -1, spec.head_dim), heads, dim=1)
    q = _normed(q, q_norm, spec.norm_eps)
    k = _normed(k, k_norm, spec.norm_eps)
    cos, sin = cos_sin[batch.positions][:, None].chunk(2, dim=-1)  # [T, 1, D/2]
    slots, cache = batch.slot_mapping.long(), kv_layer.values if isinstance(kv_layer, NarrowCache) else kv_layer
    for side, heads_of_side in zip(cache, (_rotated(k, cos, sin), v), strict=True):
        side.flatten(0, 1).index_copy_(0, slots, _stored(heads_of_side, kv_layer))
    queries = _rotated(q, cos, sin).to(qkv.dtype).float().mul_(spec.scale)
    out = torch.empty_like(queries)
    bounds = batch.query_start_loc.tolist()
    for row, seq_len in enumerate(batch.seq_lens.tolist()):
        start, end = bounds[row], bounds[row + 1]
        blocks = batch.block_tables[row, : -(-seq_len // batch.block_size)]
        keys, values = _tiles_of_context(cache, blocks, seq_len)
        _attend_row(queries[start:end], keys, values, seq_len - (end - start), spec, out[start:end])
    return out.view(qkv.shape[0], -1).to(qkv.dtype)


def _stored(heads: Tensor, kv_layer: Tensor | NarrowCache) -> Tensor:
    return round_to_codes(heads, kv_layer.dtype) if isinstance(kv_layer, NarrowCache) else heads.to(kv_layer.dtype)


def _normed(heads: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return heads if weight is None else rms_norm(heads, weight, eps)


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _tiles_of_context(kv_layer: Tensor, blocks: Tensor, seq_len: int) -> tuple[Tensor, Tensor]:
    """Keys and values of positions 0 … seq_len - 1 as float32 [tiles, KV, KEY_TILE, D], zeros past the end."""
    tiles = []
    for side in kv_layer:
        context = pad_rows(side[blocks].flatten(0, 1)[:seq_len].float(), KEY_TILE)  # [tiles * KEY_TILE, KV, D]
        tiles.append(context.view(-1, KEY_TILE, *context.shape[1:]).transpose(1, 2).contiguous())
    return tiles[0], tiles[1]


def _attend_row(q: Tensor, keys: Tensor, values: Tensor, first: int, spec: AttentionSpec, out: Tensor) -> None:
    """Tokens q[n, H, D] at positions first, first + 1, … over the context; into out[n, H, D]."""
    count, num_kv_heads = q.shape[0], spec.num_kv_heads
    group = spec.num_heads // num_kv_heads
    padded = pad_rows(q, QUERY_TILE).view(-1, QUERY_TILE, num_kv_heads, group, spec.head_dim)
    for index, tile in enumerate(padded.transpose(1, 2)):  # [KV, QUERY_TILE, group, D]
        start = index * QUERY_TILE
        end = min(start + QUERY_TILE, count)
        positions = range(first + start, first + end)
        result = _attend_tile(tile.flatten(1, 2), keys, values, positions, spec)  # [KV, QUERY_TILE * group, D]
        tokens = result.view(num_kv_heads, QUERY_TILE, group, spec.head_dim).transpose(0, 1)
        out[start:end] = tokens.reshape(QUERY_TILE, spec.num_heads, spec.head_dim)[: end - start]


def _attend_tile(q: Tensor, keys: Tensor, values: Tensor, positions: range, spec: AttentionSpec) -> Tensor:
    window = spec.sliding_window or positions.stop
    first_tile = max(0, positions.start - window + 1) // KEY_TILE
    visible = range(first_tile, (positions.stop - 1) // KEY_TILE + 1)
    scores = [_masked_scores(q, keys[tile], tile * KEY_TILE, positions, window, spec.soft_cap) for tile in visible]
    peak = scores[0].amax(-1, keepdim=True)
    for tile_scores in scores[1:]:
        peak = torch.maximum(peak, tile_scores.amax(-1, keepdim=True))
    total, weighted = torch.zeros_like(peak), torch.zeros_like(q)
    for tile, tile_scores in zip(visible, scores, strict=True):
        weights = exp_(tile_scores.sub_(peak))
        total += weights.sum(-1, keepdim=True)
        weighted += torch.bmm(weights, values[tile])
    return weighted / total


def _masked_scores(
    q: Tensor, keys: Tensor, first_key: int, positions: range, window: int, soft_cap: float | None
) -> Tensor:
    """[KV, QUERY_TILE * group, KEY_TILE]: q · k, -inf where the token must not look."""
    scores = torch.bmm(q, keys.transpose(1, 2))
    if soft_cap is not None:
        scores.div_(soft_cap).tanh_().mul_(soft_cap)
    is_all_visible = first_key + KEY_TILE - 1 <= positions.start and first_key > positions.stop - 1 - window
    if not is_all_visible:
        key = torch.arange(first_key, first_key + KEY_TILE, device=q.device)
        token = torch.arange(positions.start, positions.start + QUERY_TILE, device=q.device)[:, None]
        hidden = (key > token) | (key <= token - window)  # [QUERY_TILE, KEY_TILE]
        scores.view(q.shape[0], QUERY_TILE, -1, KEY_TILE).masked_fill_(hidden[:, None], float("-inf"))
    return scores
