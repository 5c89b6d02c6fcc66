"""The cases that every implementation of the norms must get right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NormShape:
    """x[rows, width]."""

    rows: int
    width: int


def norm_shapes() -> Iterator[NormShape]:
    """None, one and several rows; widths that fill no power of two."""
    yield NormShape(0, 64)
    yield NormShape(1, 64)
    yield NormShape(3, 48)
    yield NormShape(5, 576)
    yield NormShape(2, 1000)
