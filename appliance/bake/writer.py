"""Writes model.safetensors in one pass with bounded memory: plan → header → converted rows, hashed as they go out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from appliance.bake.dtypes import SAFETENSORS_NAMES, STORAGE, convert
from appliance.bake.fuse import FusedTensor
from appliance.bake.quantize import METADATA_KEY, Packing, pack_tensor
from appliance.bake.source import Progress, Weights

ALIGNMENT = 64  # bytes: a cache line and the widest vector register
PADDING_PREFIX = "_padding."
_CHUNK_BYTES = 16 << 20


class WrittenFile(NamedTuple):
    """Digest and size of a file that was written."""

    sha256: str
    num_bytes: int


class _Digesting:
    """A binary file that hashes what passes through it."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self._digest = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        self._handle.write(data)
        self._digest.update(data)
        self.num_bytes += len(data)

    def result(self) -> WrittenFile:
        return WrittenFile(self._digest.hexdigest(), self.num_bytes)


def write_weights(
    path: Path,
    plan: list[FusedTensor],
    weights: Weights,
    dtype: str,
    packings: dict[str, Packing],
    progress: Progress,
) -> WrittenFile:
    """Write the baked tensors as `dtype`, or packed; each starts on a multiple of 64 bytes from the start of the file.

    The format allows no holes, so what alignment needs is filled with byte tensors named `_padding.*`.
    """
    total = sum(tensor.num_elements for tensor in plan)
    done = 0
    with path.open("wb") as handle:
        out = _Digesting(handle)
        out.write(_header(plan, dtype, packings))
        for tensor in plan:
            for chunk in _content(tensor, weights, dtype, packings.get(tensor.name)):
                out.write(chunk)
            out.write(bytes(-out.num_bytes % ALIGNMENT))
            done += tensor.num_elements
            progress("weights", done / total)
        return out.result()


def _header(plan: list[FusedTensor], dtype: str, packings: dict[str, Packing]) -> bytes:
    entries: dict[str, object] = {"__metadata__": _metadata(packings)}
    offset = 0
    for index, tensor in enumerate(plan):
        entries[tensor.name], end = _stored(tensor, dtype, packings.get(tensor.name), offset)
        offset = end + -end % ALIGNMENT
        if offset > end:
            entries[f"{PADDING_PREFIX}{index}"] = _entry("U8", (offset - end,), end, offset)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _metadata(packings: dict[str, Packing]) -> dict[str, str]:
    if not packings:
        return {"format": "pt"}
    return {"format": "pt", METADATA_KEY: json.dumps({name: packing.describe() for name, packing in packings.items()})}


def _stored(tensor: FusedTensor, dtype: str, packing: Packing | None, start: int) -> tuple[dict[str, object], int]:
    """Header entry of a tensor that starts here, and where it ends."""
    if packing is not None:
        end = start + packing.num_bytes
        return _entry("U8", (packing.num_bytes,), start, end), end
    end = start + tensor.num_elements * STORAGE[dtype].itemsize
    return _entry(SAFETENSORS_NAMES[dtype], tensor.shape, start, end), end


def _entry(dtype: str, shape: tuple[int, ...], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def _content(tensor: FusedTensor, weights: Weights, dtype: str, packing: Packing | None) -> Iterator[memoryview]:
    return iter([pack_tensor(tensor, weights, packing)]) if packing else _converted_rows(tensor, weights, dtype)


def _converted_rows(tensor: FusedTensor, weights: Weights, dtype: str) -> Iterator[memoryview]:
    for part, shape in zip(tensor.parts, tensor.part_shapes, strict=True):
        row_bytes = 4 * (shape[1] if len(shape) > 1 else 1)
        step = max(1, _CHUNK_BYTES // row_bytes)
        for start in range(0, shape[0], step):
            rows = weights.read(part, start, min(start + step, shape[0]))
            converted = convert(rows, weights.dtype(part), dtype, part)
            yield memoryview(converted.astype(STORAGE[dtype], order="C", copy=False).tobytes())
