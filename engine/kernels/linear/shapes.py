"""The cases that every implementation of the linear ops must get right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearShape:
    """x[rows, in_features] to out_features channels (for SwiGLU: twice as many weight rows)."""

    rows: int
    in_features: int
    out_features: int
    has_norm: bool = True
    has_bias: bool = False


def linear_shapes() -> Iterator[LinearShape]:
    """One row, ragged tiles, channels that fill no block, more rows than any tile."""
    for rows in (1, 2, 5, 16, 17, 33, 70):
        yield LinearShape(rows, 64, 96)
    yield LinearShape(3, 48, 80, has_bias=True)
    yield LinearShape(19, 96, 48, has_norm=False)
    yield LinearShape(7, 160, 64, has_norm=False, has_bias=True)
    yield LinearShape(4, 64, 259)
    yield LinearShape(9, 576, 960)
