"""The truth: torch matrix products over tiles of a fixed number of rows.

A BLAS chooses its kernel, and with it the order of a row's sums, by the matrix's shape. Every product here therefore
has the same shape whatever the step holds: rows are cut into tiles of `ROW_TILE`, the last one padded with zeros.
That costs up to 4 times a plain product at one row and 1.5 times in prefill; the C++ library is the fast one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.elementwise import rms_norm, silu_
from engine.kernels.packed import PackedTensor, unpack
from engine.kernels.quantized.reference import dequantize
from engine.kernels.quantized.weights import QuantizedWeight

ROW_TILE = 16  # a multiple of 16 floats keeps each tile as aligned as the tensor, for any K


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A weight as torch multiplies with it."""

    weight: Tensor  # [N, K]
    bias: Tensor | None  # [N]


def prepare_linear(
    weight: Tensor | PackedTensor | QuantizedWeight, bias: Tensor | None, dtype: torch.dtype, device: torch.device
) -> LinearWeight:
    """Keep the mapped tensor, converted only where dtype or device differ; a quantized one as the floats it means."""
    if isinstance(weight, PackedTensor):
        weight = unpack(weight)
    if isinstance(weight, QuantizedWeight):
        weight = dequantize(weight, dtype)
    return LinearWeight(weight.to(device, dtype), None if bias is None else bias.to(device, dtype))


prepare_gate_up = prepare_linear  # gate rows, then up rows: as they are in the file


def pad_rows(x: Tensor, tile: int) -> Tensor:
    """x[T, …] with zero rows added up to a multiple of `tile`; x itself where there is nothing to add."""
    missing = -x.shape[0] % tile
    return torch.cat([x, x.new_zeros(missing, *x.shape[1:])]) if missing else x.contiguous()


def norm_linear(x: Tensor, norm_weight: Tensor | None, eps: float, weight: LinearWeight) -> Tensor:
    """rms_norm(x[T, K]) @ W^T + bias as [T, N]; no norm where norm_weight is None."""
    rows = pad_rows(x, ROW_TILE)
    if norm_weight is not None:
        rows = rms_norm(rows, norm_weight, eps)
    out = rows.new_empty(rows.shape[0], weight.weight.shape[0])
    columns = weight.weight.t()
    for start in range(0, rows.shape[0], ROW_TILE):
        torch.mm(rows[start : start + ROW_TILE], columns, out=out[start : start + ROW_TILE])
    if weight.bias is not None:
        out += weight.bias
    return out[: x.shape[0]]


def norm_linear_argmax(x: Tensor, norm_weight: Tensor | None, eps: float, weight: LinearWeight) -> Tensor:
    """The output of each row of x[T, K] that is the largest, int64 [T]; the lowest of equals."""
    return norm_linear(x, norm_weight, eps, weight).argmax(-1)


def norm_linear_swiglu(x: Tensor, norm_weight: Tensor | None, eps: float, weight: LinearWeight) -> Tensor:
    """silu(gate) * up of the projection of x[T, K] to gate and up, as [T, I]."""
    gate, up = norm_linear(x, norm_weight, eps, weight).chunk(2, dim=-1)
    wide = gate.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    return silu_(wide).to(x.dtype).mul_(up)


def linear_add_(residual: Tensor, a: Tensor, weight: LinearWeight) -> None:
    """residual[T, N] += a[T, K] @ W^T + bias."""
    residual.add_(norm_linear(a, None, 0.0, weight))
