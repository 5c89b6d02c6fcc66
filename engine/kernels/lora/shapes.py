"""The cases that every implementation of the adapters must get right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoraShape:
    """x[rows, in_features] through `adapters` of a rank to out_features channels."""

    rows: int
    in_features: int
    out_features: int
    rank: int
    adapters: int


def lora_shapes() -> Iterator[LoraShape]:
    """None, one and many rows; ranks below and above what a matrix instruction takes; more rows than a tile."""
    yield LoraShape(0, 64, 48, 8, 2)
    yield LoraShape(1, 64, 48, 8, 2)
    yield LoraShape(12, 96, 80, 16, 3)
    yield LoraShape(50, 48, 130, 24, 2)
    yield LoraShape(5, 1200, 64, 64, 9)
