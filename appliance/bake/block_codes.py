"""GGUF's quantized blocks as integer codes with scales, so that packing them rounds nothing a second time.

Block layouts as published with the format: 32 weights a block for Q4_0, Q4_1 and Q8_0; Q4_K holds eight groups of 32
with six-bit scales over two half-precision factors (their product is rounded to half precision here: 2^-11 relative).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from appliance.bake.source import Array

GROUP = 32


class Codes(NamedTuple):
    """w = scale · code (+ minimum), one scale (and minimum) for each 32 codes of a row; float8 has its own groups."""

    format: str  # int8, int4 with codes 0 … 15, or a float8 format of `engine.kernels.packed`
    codes: Array  # int8 [rows, k]; float8 as uint8
    scales: Array  # float16 [rows, k / 32]; of float8 float32 [rows, groups]
    minima: Array | None  # float16 [rows, k / 32]; int4 only


def read_codes(rows: Array, type_name: str) -> Codes:
    """Codes of raw block rows uint8 [rows, bytes]. Raises KeyError for a type that is not in `READERS`."""
    return READERS[type_name](np.ascontiguousarray(rows))


def _blocks(rows: Array, size: int) -> Array:
    return rows.reshape(rows.shape[0], -1, size)


def _half(blocks: Array, start: int) -> Array:
    return np.ascontiguousarray(blocks[..., start : start + 2]).view("<f2")[..., 0]


def _nibbles(packed: Array) -> Array:
    """Low nibbles, then high ones, along the last axis."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.int8)


def _flat(codes: Array) -> Array:
    return np.ascontiguousarray(codes.reshape(codes.shape[0], -1))


def _q8_0(rows: Array) -> Codes:
    blocks = _blocks(rows, 2 + GROUP)
    return Codes("int8", _flat(np.ascontiguousarray(blocks[..., 2:]).view(np.int8)), _half(blocks, 0), None)


def _q4_0(rows: Array) -> Codes:
    blocks = _blocks(rows, 2 + GROUP // 2)
    scales = _half(blocks, 0)
    return Codes("int4", _flat(_nibbles(blocks[..., 2:])), scales, scales * np.float16(-8))


def _q4_1(rows: Array) -> Codes:
    blocks = _blocks(rows, 4 + GROUP // 2)
    return Codes("int4", _flat(_nibbles(blocks[..., 4:])), _half(blocks, 0), _half(blocks, 2))


def _q4_k(rows: Array) -> Codes:
    blocks = _blocks(rows, 144)
    d, dmin = (_half(blocks, start)[..., None].astype(np.float32) for start in (0, 2))
    scales, minima = _six_bit_pairs(blocks[..., 4:16])
    packed = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32)
    codes = np.stack([packed & 15, packed >> 4], axis=-2).astype(np.int8)  # [rows, blocks, 4, 2, 32]
    return Codes(
        "int4", _flat(codes), _flat((d * scales).astype(np.float16)), _flat((-dmin * minima).astype(np.float16))
    )


def _six_bit_pairs(packed: Array) -> tuple[Array, Array]:
    """The eight scales and eight minima of 12 bytes [..., 12]: four of each whole, the others in two pieces."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=-1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=-1)
    return scales.astype(np.float32), minima.astype(np.float32)


READERS = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k}
