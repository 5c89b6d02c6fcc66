"""Integers of four or eight bits inside 32-bit words, and float8 as floats."""

from __future__ import annotations

import numpy as np

from appliance.bake.source import Array

_NAN = 0x7F  # e4m3 has one NaN, with either sign, and no infinity


def unpack_words(words: Array, bits: int) -> Array:
    """uint8 [rows, columns * 32 / bits] of int32 [rows, columns], each word's lowest bits first."""
    octets = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    if bits == 8:
        return octets
    fields = np.empty((octets.shape[0], 2 * octets.shape[1]), np.uint8)
    np.bitwise_and(octets, 15, out=fields[:, ::2])
    np.right_shift(octets, 4, out=fields[:, 1::2])
    return fields


def has_nan(codes: Array) -> bool:
    """Whether any e4m3 code (uint8) is not a number."""
    return bool(((codes & _NAN) == _NAN).any())


def _e4m3_values() -> Array:
    """The value of each e4m3 code: four bits of exponent with bias 7, three of mantissa; exponent 0 is subnormal."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitude[(code & _NAN) == _NAN] = np.nan
    return np.where(code < 128, magnitude, -magnitude).astype(np.float32)


E4M3 = _e4m3_values()
