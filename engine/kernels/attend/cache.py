"""The KV cache of a layer on a GPU: one head's slots of a block lie together; narrow types carry a scale a slot.

Types: the model's own (16 or 32 bits), int8, and float8 e4m3. A narrow value is ``code * scale`` with one float32
scale for each key and value head of each token, found when the token is written: nothing to calibrate, 3 % more bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.elementwise import LARGEST_CODE

SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of one layer; scales only where the values are narrow."""

    keys: Tensor  # [num_blocks, KV, block_size, D]
    values: Tensor  # the same
    key_scales: Tensor | None  # float32 [num_blocks, KV, block_size]
    value_scales: Tensor | None

    @property
    def is_quantized(self) -> bool:
        """Whether values need their scale."""
        return self.key_scales is not None


def kv_block_bytes(block_size: int, num_kv_heads: int, head_dim: int, num_layers: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers: keys, values and their scales."""
    scale = SCALE_BYTES if dtype in LARGEST_CODE else 0
    return 2 * block_size * num_kv_heads * (head_dim * dtype.itemsize + scale) * num_layers


def make_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    num_layers: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[KVCache]:
    """Zeroed caches, one a layer."""
    shape = (num_blocks, num_kv_heads, block_size, head_dim)
    scales = shape[:3] if dtype in LARGEST_CODE else None

    def side() -> tuple[Tensor, Tensor | None]:
        # Zeroed as bytes: not every device can fill every narrow type.
        data = torch.zeros(*shape[:3], head_dim * dtype.itemsize, dtype=torch.uint8, device=device).view(dtype)
        return data, None if scales is None else torch.zeros(scales, dtype=torch.float32, device=device)

    caches = []
    for _ in range(num_layers):
        (keys, key_scales), (values, value_scales) = side(), side()
        caches.append(KVCache(keys, values, key_scales, value_scales))
    return caches
