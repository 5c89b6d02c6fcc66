"""Weight dtypes in plain numpy: conversion and the check that nothing is NaN or infinite.

numpy has no bfloat16, so its bits travel as uint16. Rounding is to nearest, ties to even, as torch does it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.bake.source import Array
from appliance.errors import BakeError

STORAGE: dict[str, Any] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2")}
SAFETENSORS_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def convert(array: Array, source: str, target: str, name: str) -> Array:
    """Convert between weight dtypes. Raises BakeError, naming the tensor, where a value isn't finite or doesn't fit."""
    if not is_finite(array, source):
        raise BakeError(f"tensor {name} holds NaN or infinite values")
    if source == target:
        return array
    result = _from_float32(_to_float32(array, source), target)
    if not is_finite(result, target):
        raise BakeError(f"tensor {name} holds values that are too large for {target}")
    return result


def is_finite(array: Array, dtype: str) -> bool:
    """Whether every value is a finite number."""
    if dtype == "bfloat16":
        return bool(((array & 0x7F80) != 0x7F80).all())
    return bool(np.isfinite(array).all())


def _to_float32(array: Array, source: str) -> NDArray[np.float32]:
    if source == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)


def _from_float32(array: NDArray[np.float32], target: str) -> Array:
    if target == "bfloat16":
        bits = np.ascontiguousarray(array).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return array.astype(STORAGE[target], copy=False)
