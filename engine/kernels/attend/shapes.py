"""The cases that every implementation of attention must get right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttendShape:
    """Rows as (context length, how many of its last tokens are new); heads; options."""

    rows: tuple[tuple[int, int], ...]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 16
    sliding_window: int | None = None
    has_qk_norm: bool = False


def attend_shapes() -> Iterator[AttendShape]:
    """Prefill, decode, both in one step, block and tile edges, grouped and single heads, windows, q/k norm."""
    yield AttendShape(((1, 1),))
    yield AttendShape(((40, 40),))
    yield AttendShape(((129, 1), (16, 1), (17, 1)))
    yield AttendShape(((150, 20), (3, 3), (64, 1), (33, 16)))
    yield AttendShape(((50, 50), (20, 1)), num_heads=9, num_kv_heads=3, head_dim=64)
    yield AttendShape(((35, 12), (140, 1)), num_heads=6, num_kv_heads=1, head_dim=32)
    yield AttendShape(((21, 21), (30, 1)), num_heads=3, num_kv_heads=3)
    yield AttendShape(((90, 90), (150, 2), (5, 1)), sliding_window=11)
    yield AttendShape(((60, 25), (18, 1)), has_qk_norm=True)
    yield AttendShape(((70, 70), (33, 1)), block_size=32)
