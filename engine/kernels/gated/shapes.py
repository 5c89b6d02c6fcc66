"""The cases that every implementation of a gated activation must get right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatedShape:
    """x[rows, 2 * width]."""

    rows: int
    width: int


def gated_shapes() -> Iterator[GatedShape]:
    """None, one and several rows; widths below and above one block, and not a multiple of it."""
    yield GatedShape(0, 32)
    yield GatedShape(1, 32)
    yield GatedShape(3, 80)
    yield GatedShape(2, 1500)
