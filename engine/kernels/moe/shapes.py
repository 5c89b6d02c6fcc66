"""The cases that every implementation of the mixture of experts must get right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MoeShape:
    """x[rows, width] over `experts` of intermediate size `inner`, `top_k` for each row."""

    rows: int
    width: int
    inner: int
    experts: int
    top_k: int
    renormalizes: bool = True


def moe_shapes() -> Iterator[MoeShape]:
    """None, one and many rows; experts that nobody uses, and more rows of one than a tile holds."""
    yield MoeShape(0, 32, 32, 4, 2)
    yield MoeShape(1, 32, 48, 8, 2)
    yield MoeShape(5, 48, 80, 3, 3, renormalizes=False)
    yield MoeShape(50, 32, 32, 2, 1)
    yield MoeShape(70, 64, 32, 5, 2)
