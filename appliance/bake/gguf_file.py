"""Reads GGUF files, mapped: metadata and the table of tensors, every length checked against the file's.

Our own reader, because the `gguf` package's one trusts the file (a cut-off one makes it loop or index past the end);
what the quantized blocks mean is left to that package's `dequantize`.
"""

from __future__ import annotations

import mmap
import struct
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from appliance.bake.source import Array, as_array
from appliance.errors import BakeError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4


class Tensor(NamedTuple):
    """An entry of the table: shape as numpy has it (rows first), bytes from the start of the file."""

    type_name: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class GGUFFile:
    """`metadata` (plain values; arrays as lists) and `tensors` of one file. Raises BakeError in one line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}
        try:
            with path.open("rb") as handle:
                self._data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            _Parser(self._data, self.metadata, self.tensors).parse()
        except struct.error:
            raise BakeError(f"{path.name} is cut off or damaged: its header ends too early") from None
        except (OSError, ValueError) as error:
            raise BakeError(f"{path.name} is not a readable GGUF file: {error}") from None

    def rows(self, name: str) -> Array:
        """A tensor's bytes as uint8 [rows, bytes a row] (a vector counts each value as a row)."""
        tensor = self.tensors[name]
        rows = tensor.shape[0]
        return as_array(self._data, np.uint8, (rows, tensor.num_bytes // rows), tensor.offset)


class _Parser:
    """One pass over the header. Raises struct.error past the end and ValueError for what makes no sense."""

    def __init__(self, data: mmap.mmap, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._data, self._metadata, self._tensors = data, metadata, tensors
        self._at = 0

    def parse(self) -> None:
        if self._data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        self._at = 4
        version = self._number("I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not supported, only {_VERSIONS[0]} and {_VERSIONS[1]}")
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        for _ in range(num_keys):
            key = self._string()
            if key in self._metadata:
                raise ValueError(f"the key {key} occurs twice")
            self._metadata[key] = self._value(self._number("I"))
        self._read_tensors(num_tensors)

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        return self._take(self._number("Q")).decode("utf-8")

    def _take(self, num_bytes: int) -> bytes:
        if num_bytes > len(self._data) - self._at:
            raise struct.error
        start, self._at = self._at, self._at + num_bytes
        return self._data[start : self._at]

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind} at byte {self._at}")
        value = self._number(_SCALARS[kind])
        # The shortest decimal that is this float32: what the model's own config.json says (1e-05, not 9.9999997e-06).
        return float(str(np.float32(value))) if kind == _FLOAT32 else value

    def _array(self) -> list[Any]:
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            return [self._string() for _ in range(self._counted(count, 8))]
        if kind not in _SCALARS:
            raise ValueError(f"arrays of value type {kind} are not supported (byte {self._at})")
        dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
        values: list[Any] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        return values

    def _counted(self, count: int, min_bytes: int) -> int:
        """A count of things of at least `min_bytes` each must fit in what is left, before anything is allocated."""
        if count * min_bytes > len(self._data) - self._at:
            raise struct.error
        return count

    def _read_tensors(self, count: int) -> None:
        entries = [self._tensor_entry() for _ in range(self._counted(count, 24))]
        alignment = self._metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment!r}")
        start = self._at + -self._at % alignment
        for name, shape, kind, offset in entries:
            if name in self._tensors:
                raise ValueError(f"the tensor {name} occurs twice")
            self._tensors[name] = self._placed(name, shape, kind, start + offset)

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._string(), self._number("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"the tensor {name} has {dimensions} dimensions")
        shape = tuple(reversed([self._number("Q") for _ in range(dimensions)]))
        return name, shape, self._number("I"), self._number("Q")

    def _placed(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Tensor:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            tensor_type = GGMLQuantizationType(kind)
        except ValueError:
            raise ValueError(f"the tensor {name} has the unknown type {kind}") from None
        block, block_bytes = GGML_QUANT_SIZES[tensor_type]
        if min(shape) < 1 or shape[-1] % block:
            raise ValueError(f"the tensor {name} of shape {list(shape)} does not divide into {tensor_type.name} blocks")
        num_bytes = prod(shape) // block * block_bytes
        if offset + num_bytes > len(self._data):
            raise ValueError(f"it is cut off, the tensor {name} lies behind its end")
        return Tensor(tensor_type.name, shape, offset, num_bytes)
