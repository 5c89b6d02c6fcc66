"""Attention on a GPU in batch-invariant mode: `attend` with one tile and no splits, over the same cache."""

from __future__ import annotations

from engine.kernels.attend.cache import kv_block_bytes, make_kv_cache
from engine.kernels.attend.kernel import attend_invariant as attend

__all__ = ["attend", "kv_block_bytes", "make_kv_cache"]
