"""The cases that every implementation of the dense product must get right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MatmulShape:
    """x[rows, in_features] times weight[out_features, in_features]."""

    rows: int
    in_features: int
    out_features: int
    has_bias: bool = False
    has_addend: bool = False


def matmul_shapes() -> Iterator[MatmulShape]:
    """None, one, several rows and more than a tile; K and N that fill no tile."""
    yield MatmulShape(0, 64, 64)
    yield MatmulShape(1, 64, 64)
    yield MatmulShape(3, 100, 70, has_bias=True)
    yield MatmulShape(70, 48, 130, has_addend=True)
    yield MatmulShape(17, 200, 33, has_bias=True, has_addend=True)
