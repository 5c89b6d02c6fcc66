"""Rows or columns of a packed matrix as a packed matrix again: bytes are moved, nothing is unpacked.

Only the bytes of the part are read. Blocks of output channels and groups of input channels stay whole; a cut through
one is refused, since it would have to quantize anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.kernels.packed import FLOAT8, FP8_BLOCK, GROUP, LANES, PackedTensor, view_groups
from engine.span import Span


def cut_packed_rows(tensor: PackedTensor, spans: Sequence[Span]) -> PackedTensor:
    """These rows, one span below the other. Where gate and up rows are interleaved: the same channels of both."""
    rows = sum(span.size for span in spans)
    if tensor.format in FLOAT8:
        scales, codes = _float8_parts(tensor)
        scales = torch.cat([scales[:, span.start : span.end] for span in spans], 1)
        codes = torch.cat([codes[span.start : span.end] for span in spans])
        return _float8(tensor, scales, codes, (rows, tensor.shape[1]))
    blocks = view_groups(tensor)
    if tensor.is_gate_up:
        spans, unit, whole = spans[:1], LANES // 2, tensor.shape[0] // 2
    else:
        unit, whole = LANES, tensor.shape[0]
    parts = [blocks[slice(*_units(tensor, span, unit, whole, "rows"))].reshape(-1) for span in spans]
    data = parts[0] if len(parts) == 1 else torch.cat(parts)
    return PackedTensor(data, (rows, tensor.shape[1]), tensor.format, tensor.is_gate_up)


def cut_packed_columns(tensor: PackedTensor, span: Span) -> PackedTensor:
    """These columns."""
    rows, columns = tensor.shape
    if tensor.format in FLOAT8:
        scales, codes = _float8_parts(tensor)
        if tensor.format != "fp8":
            scales = scales[slice(*_units(tensor, span, FP8_BLOCK, columns, "columns"))]
        return _float8(tensor, scales, codes[:, span.start : span.end], (rows, span.size))
    groups = slice(*_units(tensor, span, GROUP, columns, "columns"))
    data = view_groups(tensor)[:, groups].reshape(-1)
    return PackedTensor(data, (rows, span.size), tensor.format, tensor.is_gate_up)


def _float8_parts(tensor: PackedTensor) -> tuple[Tensor, Tensor]:
    """The bytes of scales [blocks, N, 4] and codes [N, K]."""
    rows, columns = tensor.shape
    scales = tensor.data[: tensor.data.numel() - rows * columns]
    return scales.view(-1, rows, 4), tensor.data[scales.numel() :].view(rows, columns)


def _float8(tensor: PackedTensor, scales: Tensor, codes: Tensor, shape: tuple[int, int]) -> PackedTensor:
    return PackedTensor(torch.cat([scales.reshape(-1), codes.reshape(-1)]), shape, tensor.format, tensor.is_gate_up)


def _units(tensor: PackedTensor, span: Span, unit: int, whole: int, what: str) -> tuple[int, int]:
    """The span in blocks or groups; the last one of the matrix may be short."""
    if span.start % unit or (span.end % unit and span.end != whole):
        raise ConfigError(
            f"a matrix packed as {tensor.format} cannot be cut into {what} {span.start} to {span.end}, only between "
            f"multiples of {unit}: choose another tensor_parallel_size, or bake with --quantization none"
        )
    return span.start // unit, -(-span.end // unit)
