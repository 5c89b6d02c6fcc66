"""Reads safetensors files, mapped: one file or the shards of an index. Every header is checked against the file.

Our own reader, because the `safetensors` package needs torch for bfloat16 and because damage must become one line.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from appliance.bake.dtypes import STORAGE
from appliance.bake.source import Array, as_array
from appliance.errors import BakeError

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_CODES = {"I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1", "F8_E4M3": "u1"}  # what quantized checkpoints hold, too
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


class _Entry(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    data: mmap.mmap
    file: str


class SafetensorsWeights:
    """The tensors of one or several safetensors files (implements `source.Weights`)."""

    def __init__(self, files: list[Path]) -> None:
        self._entries: dict[str, _Entry] = {}
        for file in files:
            for name, entry in read_entries(file).items():
                if name in self._entries:
                    raise BakeError(f"tensor {name} is in both {self._entries[name].file} and {file.name}")
                self._entries[name] = entry

    def names(self) -> Collection[str]:
        """All tensors of all files."""
        return self._entries.keys()

    def dtype(self, name: str) -> str:
        """The stored dtype. Raises BakeError where it is not a plain floating one."""
        entry = self._entries[name]
        if entry.dtype not in _DTYPES:
            raise BakeError(
                f"tensor {name} of {entry.file} has dtype {entry.dtype}, supported are {', '.join(sorted(_DTYPES))}"
            )
        return _DTYPES[entry.dtype]

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape."""
        return self._entries[name].shape

    def own_format(self, name: str) -> None:
        """Floats have none."""

    def codes(self, name: str, format: str) -> None:
        """Floats have none."""

    def stored_dtype(self, name: str) -> str:
        """The dtype as the file names it."""
        return self._entries[name].dtype

    def raw(self, name: str) -> Array:
        """A tensor of any known dtype, whole: bfloat16 and float8 as their bits. Raises BakeError for another dtype."""
        entry = self._entries[name]
        if entry.dtype not in _DTYPES and entry.dtype not in _CODES:
            raise BakeError(f"tensor {name} of {entry.file} has dtype {entry.dtype}, which is not supported")
        return as_array(entry.data, _storage(entry.dtype), entry.shape, entry.offset)

    def read(self, name: str, start: int, stop: int) -> Array:
        """Rows [start, stop), a view of the mapped file."""
        entry = self._entries[name]
        return as_array(entry.data, STORAGE[self.dtype(name)], entry.shape, entry.offset)[start:stop]

    def main_dtype(self, names: Collection[str] | None = None) -> str:
        """The dtype that most of the bytes of these tensors have, of all if none are named."""
        sizes: dict[str, int] = {}
        for name in self._entries if names is None else names:
            entry = self._entries[name]
            sizes[self.dtype(name)] = sizes.get(self.dtype(name), 0) + int(np.prod(entry.shape, dtype=np.int64))
        return max(sorted(sizes), key=lambda dtype: sizes[dtype])


def read_entries(file: Path) -> dict[str, _Entry]:
    """Read and check one file's header. Raises BakeError in one line."""
    data, header, start = _read_header(file)
    entries = {}
    for name, fields in header.items():
        if name != "__metadata__":
            entries[name] = _read_entry(file, name, fields, start, data)
    if not entries:
        raise BakeError(f"{file.name} holds no tensors")
    return entries


def _read_header(file: Path) -> tuple[mmap.mmap, dict[str, Any], int]:
    try:
        with file.open("rb") as handle:
            data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        (length,) = struct.unpack_from("<Q", data, 0)
        if not 2 <= length <= min(_MAX_HEADER_BYTES, len(data) - 8):
            raise BakeError(f"{file.name} is damaged or cut off: its header of {length} bytes does not fit in the file")
        header = json.loads(data[8 : 8 + length])
    except (OSError, struct.error, ValueError, RecursionError) as error:
        raise BakeError(f"{file.name} is not a readable safetensors file: {error}") from None
    if not isinstance(header, dict):
        raise BakeError(f"{file.name} is damaged: its header is not a JSON object")
    return data, header, 8 + length


def _read_entry(file: Path, name: str, fields: Any, start: int, data: mmap.mmap) -> _Entry:
    try:
        dtype, (begin, end) = str(fields["dtype"]), fields["data_offsets"]
        shape = tuple(int(size) for size in fields["shape"])
        begin, end = int(begin), int(end)
    except (KeyError, TypeError, ValueError):
        raise BakeError(f"{file.name} is damaged: the header's entry for {name} cannot be read") from None
    if not 0 <= begin <= end <= len(data) - start or any(size <= 0 for size in shape):
        raise BakeError(f"{file.name} is damaged or cut off: tensor {name} lies outside of the file")
    is_known = dtype in _DTYPES or dtype in _CODES
    if is_known and end - begin != int(np.prod(shape, dtype=np.int64)) * _storage(dtype).itemsize:
        raise BakeError(
            f"{file.name} is damaged: tensor {name} has {end - begin} bytes, its shape {shape} needs others"
        )
    return _Entry(dtype, shape, start + begin, data, file.name)


def _storage(dtype: str) -> Any:
    return STORAGE[_DTYPES[dtype]] if dtype in _DTYPES else np.dtype(_CODES[dtype])
