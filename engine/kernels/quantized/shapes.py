"""The cases that every implementation of the quantized products must get right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.kernels.quantized.weights import Scheme


@dataclass(frozen=True, slots=True)
class QuantizedShape:
    """x[rows, in_features] to out_features channels; int4 in groups of `group`, the others if they are `is_grouped`."""

    scheme: Scheme
    rows: int
    in_features: int
    out_features: int
    group: int = 32
    has_zeros: bool = False
    has_bias: bool = False
    is_grouped: bool = False
    has_minima: bool = False


def quantized_shapes() -> Iterator[QuantizedShape]:
    """None, one, several rows and more than a tile; channels that fill no tile; every way to scale."""
    for scheme in Scheme:
        yield QuantizedShape(scheme, 0, 64, 48)
        yield QuantizedShape(scheme, 1, 64, 80)
        yield QuantizedShape(scheme, 5, 256, 96, group=128, has_bias=True)
        yield QuantizedShape(scheme, 70, 96, 130, has_zeros=True)
        yield QuantizedShape(scheme, 3, 512, 40, group=512)
    yield QuantizedShape(Scheme.INT4, 19, 192, 96, group=64, has_zeros=True, has_bias=True)
    yield QuantizedShape(Scheme.INT4, 5, 96, 80, has_minima=True)
    yield QuantizedShape(Scheme.INT4, 70, 256, 48, group=128, has_minima=True, has_bias=True)
    for scheme in (Scheme.INT8, Scheme.FP8):
        yield QuantizedShape(scheme, 1, 256, 80, is_grouped=True, group=64)
        yield QuantizedShape(scheme, 130, 128, 96, is_grouped=True, has_bias=True)
    yield QuantizedShape(Scheme.FP8, 6, 200, 64, is_grouped=True, group=128)  # its last block is short
    yield QuantizedShape(Scheme.FP8, 3, 64, 48, is_grouped=True, group=128)  # a rank's part is less than a block
