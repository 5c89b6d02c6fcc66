"""Attention by the C++ library, over a cache whose blocks are packed like weights (native/attention.h).

float32 keys and values are the reference precision; bfloat16 halves the bytes that a long context reads, int8 (a scale
for each head of each token) halves them again. Block sizes are multiples of 16.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.kernels.batch import AttentionSpec, StepBatch
from engine.kernels.native.library import Attention, Batch, Cache, Format, load_library
from engine.kernels.native.packing import allocate

SUB_BLOCK = 16  # slots, and the multiple that head sizes are padded to
CACHE_FORMATS = {torch.float32: Format.FLOAT32, torch.bfloat16: Format.BFLOAT16, torch.float16: Format.BFLOAT16}
CACHE_FORMATS[torch.int8] = Format.INT8
WIDTHS = {Format.FLOAT32: 4, Format.BFLOAT16: 2, Format.INT8: 1}  # bytes of a value
SCALE_BYTES = 4  # of an int8 head
_EMPTY = torch.zeros(1, dtype=torch.int32)


@dataclass(slots=True)
class _BatchView:
    """The C struct of the step's batch, made by the first layer and found by the others."""

    batch: StepBatch | None = None
    struct: Batch = field(default_factory=Batch)

    def of(self, batch: StepBatch) -> int:
        if self.batch is not batch:
            self.batch, self.struct = batch, batch_struct(batch)
        return ctypes.addressof(self.struct)


@dataclass(slots=True)
class LayerCache:
    """One layer's keys and values and the structs that describe them; `view` is common to all layers."""

    data: Tensor  # uint8, with the other layers' between its blocks
    struct: Cache
    view: _BatchView
    spec: AttentionSpec | None = None
    cos_sin: Tensor | None = None
    attention: Attention = field(default_factory=Attention)

    def attention_of(self, spec: AttentionSpec, cos_sin: Tensor) -> int:
        """Address of the struct of a layer's attention; both arguments are the same objects in every step."""
        if self.spec is not spec or self.cos_sin is not cos_sin:
            self.spec, self.cos_sin, self.attention = spec, cos_sin, attention_struct(spec, cos_sin)
        return ctypes.addressof(self.attention)


def kv_block_bytes(block_size: int, num_kv_heads: int, head_dim: int, num_layers: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values; float16 is kept as bfloat16."""
    padded = -(-head_dim // SUB_BLOCK) * SUB_BLOCK
    format = CACHE_FORMATS[dtype]
    head_bytes = padded * WIDTHS[format] + (SCALE_BYTES if format == Format.INT8 else 0)
    return 2 * block_size * num_kv_heads * head_bytes * num_layers


def make_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    num_layers: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[LayerCache]:
    """Zeroed caches, one a layer, in huge pages where there are any. A block's parts of all layers lie side by side, so
    that few blocks in use take few pages.
    """
    if block_size % SUB_BLOCK:
        raise ConfigError(f"block_size must be a multiple of {SUB_BLOCK} on a CPU, not {block_size}")
    view, size = _BatchView(), kv_block_bytes(block_size, num_kv_heads, head_dim, 1, dtype)
    stride = size * num_layers
    memory = allocate(num_blocks * stride)
    caches = []
    for layer in range(num_layers):
        data = memory[layer * size : layer * size + (num_blocks - 1) * stride + size]
        struct = Cache(
            data=data.data_ptr(),
            data_bytes=data.numel(),
            block_stride=stride,
            num_blocks=num_blocks,
            format=CACHE_FORMATS[dtype],
        )
        caches.append(LayerCache(data, struct, view))
    return caches


def attend(
    qkv: Tensor,
    kv_layer: LayerCache,
    batch: StepBatch,
    cos_sin: Tensor,
    spec: AttentionSpec,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
) -> Tensor:
    """qkv[T, (H+2KV)*D] to [T, H*D]; changes qkv; the step's keys and values are written to kv_layer first."""
    wide = qkv.float().contiguous()
    if wide.shape != (batch.positions.shape[0], (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim):
        raise ValueError(f"qkv {tuple(wide.shape)} does not fit the batch and {spec}")
    norms = [None if norm is None else norm.float() for norm in (q_norm, k_norm)]
    out = torch.empty(wide.shape[0], spec.num_heads * spec.head_dim)
    load_library().attend(
        wide.data_ptr(),
        ctypes.addressof(kv_layer.struct),
        kv_layer.view.of(batch),
        kv_layer.attention_of(spec, cos_sin),
        None if norms[0] is None else norms[0].data_ptr(),
        None if norms[1] is None else norms[1].data_ptr(),
        out.data_ptr(),
    )
    return out.to(qkv.dtype)


def batch_struct(batch: StepBatch) -> Batch:
    """The C view of a batch; valid as long as the batch lives."""
    tensors = (batch.positions, batch.slot_mapping, batch.query_start_loc, batch.seq_lens, batch.block_tables)
    wanted = batch.wanted
    checked = tensors if wanted is None else (*tensors, wanted)
    if any(t.dtype != torch.int32 or not t.is_contiguous() for t in checked):
        raise ValueError("the index tensors of a batch must be contiguous int32")
    return Batch(
        *(t.data_ptr() for t in tensors),
        num_tokens=batch.positions.shape[0],
        num_rows=batch.seq_lens.shape[0],
        table_width=batch.block_tables.shape[1],
        block_size=batch.block_size,
        wanted=None if wanted is None else _address(wanted),
        num_wanted=0 if wanted is None else wanted.numel(),
    )


def _address(wanted: Tensor) -> int:
    # An empty tensor has no address, and none would mean all.
    return wanted.data_ptr() or _EMPTY.data_ptr()


def attention_struct(spec: AttentionSpec, cos_sin: Tensor) -> Attention:
    """The C view of a layer's attention; valid as long as cos_sin lives. ConfigError for a soft cap."""
    if spec.soft_cap is not None:
        raise ConfigError("attention with a soft cap (soft_cap, Gemma 2's) has no CPU kernel: set device to cuda")
    if cos_sin.dtype != torch.float32 or not cos_sin.is_contiguous() or cos_sin.shape[1] != spec.head_dim:
        raise ValueError(f"cos_sin must be contiguous float32 [max_model_len, {spec.head_dim}]")
    return Attention(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        window=spec.sliding_window or 0,
        scale=spec.scale,
        norm_eps=spec.norm_eps,
        cos_sin=cos_sin.data_ptr(),
        max_positions=cos_sin.shape[0],
    )
