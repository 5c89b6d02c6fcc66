"""A matrix that was packed at bake: what `engine.models.loader` hands out for it, and what its bytes mean.

Two layouts. float32, bfloat16, float16, int8 and int4 lie as the CPU kernels read them (`native/weights.h`): blocks of
16 output channels, in each of them groups of 32 input channels. fp8 and fp8_block hold what a float8 checkpoint has:
float32 scales, then e4m3 codes [N, K] in natural order; one scale a row, or one for each `FP8_BLOCK` input channels of
it, [blocks, N]. Everything here is torch on whatever device the bytes are on: no compiled library, so that a GPU can
take a folder apart that was packed for a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 32  # input channels that share a scale
LANES = 16  # output channels of a block
FP8_BLOCK = 128  # input channels that share a scale in fp8_block
FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FLOAT8 = ("fp8", "fp8_block")
INT4 = ("int4", "int4_a8")  # the same bytes; a CPU multiplies the second with most activations as 8 bits, not 16
# bytes of 32 input channels of 16 output channels: codes, then scales, for int4 minima, too
GROUP_BYTES = {name: GROUP * LANES * dtype.itemsize for name, dtype in FLOATS.items()}
GROUP_BYTES |= {"int8": GROUP * LANES + 2 * LANES} | dict.fromkeys(INT4, GROUP * LANES // 2 + 4 * LANES)
FORMATS = (*GROUP_BYTES, *FLOAT8)


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """The bytes of a packed [N, K] matrix, as mapped from the file."""

    data: Tensor  # uint8
    shape: tuple[int, int]
    format: str  # one of FORMATS
    is_gate_up: bool  # gate and up rows are interleaved (never in fp8 and fp8_block)

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return self.data.nbytes


class Codes(NamedTuple):
    """w = scale · code (+ minimum), rows in natural order."""

    codes: Tensor  # int8, uint8 0 … 15 (int4) or float8_e4m3fn [N, K]
    scales: Tensor  # float16 [N, K / 32], for float8 float32 [N, blocks]
    minima: Tensor | None  # like scales; int4 only
    group: int  # input channels that share a scale, the last group may be short


def packed_bytes(shape: tuple[int, int], format: str, *, is_gate_up: bool) -> int:
    """Size of a packed [N, K] matrix. Raises KeyError for a format that there is not."""
    rows, columns = shape
    if format in FLOAT8:
        return rows * (columns + torch.float32.itemsize * _count_scales(columns, format))
    blocks = -(-(rows // 2) // (LANES // 2)) if is_gate_up else -(-rows // LANES)
    return blocks * -(-columns // GROUP) * GROUP_BYTES[format]


def read_codes(tensor: PackedTensor) -> Codes:
    """The codes and scales of an int8, int4, fp8 or fp8_block matrix."""
    if tensor.format in FLOAT8:
        return _float8(tensor)
    code_bytes = GROUP * LANES if tensor.format == "int8" else GROUP * LANES // 2
    groups = view_groups(tensor)
    tail = groups[..., code_bytes:].contiguous().view(torch.float16)
    factors = [_natural_rows(part[..., None], tensor) for part in torch.split(tail, LANES, -1)]
    bytes_ = groups[..., :code_bytes]
    codes = _pairs(bytes_.view(torch.int8)) if tensor.format == "int8" else _nibbles(bytes_)
    columns = tensor.shape[1]
    return Codes(
        _natural_rows(codes, tensor)[:, :columns], factors[0], factors[1] if tensor.format in INT4 else None, GROUP
    )


def unpack(tensor: PackedTensor) -> Tensor:
    """The whole matrix as float32 [N, K], rows in their natural order."""
    if tensor.format in FLOATS:
        return _unpack_floats(tensor)
    codes, scales, minima, group = read_codes(tensor)
    values = codes.float() * _widened(scales, group, tensor.shape[1])
    return values if minima is None else values.add_(_widened(minima, group, tensor.shape[1]))


def _unpack_floats(tensor: PackedTensor) -> Tensor:
    dtype = FLOATS[tensor.format]
    values = view_groups(tensor).view(dtype)
    lanes = _pairs(values) if tensor.format == "bfloat16" else values.view(*values.shape[:-1], GROUP, LANES).mT
    return _natural_rows(lanes, tensor)[:, : tensor.shape[1]].float()


def _float8(tensor: PackedTensor) -> Codes:
    rows, columns = tensor.shape
    group = columns if tensor.format == "fp8" else FP8_BLOCK
    size = _count_scales(columns, tensor.format) * rows * torch.float32.itemsize
    scales = tensor.data[:size].view(torch.float32).view(-1, rows).t()
    codes = tensor.data[size:].view(torch.float8_e4m3fn).view(rows, columns)
    return Codes(codes, scales.contiguous(), None, group)


def _count_scales(columns: int, format: str) -> int:
    return 1 if format == "fp8" else -(-columns // FP8_BLOCK)


def view_groups(tensor: PackedTensor) -> Tensor:
    """uint8 [blocks, groups, bytes of a group] of a matrix that lies as the CPU kernels read it."""
    return tensor.data.view(-1, -(-tensor.shape[1] // GROUP), GROUP_BYTES[tensor.format])


def _pairs(values: Tensor) -> Tensor:
    """[…, 16 pairs of k, 16 channels, 2 k] flat to […, 16 channels, 32 k]."""
    return values.reshape(*values.shape[:-1], GROUP // 2, LANES, 2).transpose(-3, -2).flatten(-2)


def _nibbles(values: Tensor) -> Tensor:
    """[…, 4 eights of k, 16 channels, 4 bytes] flat to […, 16 channels, 32 k]: nibbles are even k, then odd ones."""
    packed = values.reshape(*values.shape[:-1], GROUP // 8, LANES, 4)
    nibbles = torch.stack([packed & 15, packed >> 4], dim=-1).view(*packed.shape[:-1], 2, 4)
    return nibbles.mT.flatten(-2).transpose(-3, -2).flatten(-2)


def _natural_rows(lanes: Tensor, tensor: PackedTensor) -> Tensor:
    """[blocks, groups, 16 channels, n] to [N, groups * n]."""
    rows = lanes.transpose(1, 2).flatten(2)  # [blocks, 16, groups * n]
    if not tensor.is_gate_up:
        return rows.flatten(0, 1)[: tensor.shape[0]]
    halves: Tensor = rows.reshape(rows.shape[0], 2, LANES // 2, -1).transpose(0, 1).flatten(1, 2)  # [2, channels, …]
    return halves[:, : tensor.shape[0] // 2].flatten(0, 1)


def _widened(per_group: Tensor, group: int, columns: int) -> Tensor:
    return per_group.float().repeat_interleave(group, 1)[:, :columns]
