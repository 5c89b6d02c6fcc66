"""The truth: the weight as floats, and a torch product with it."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.elementwise import round_to_codes
from engine.kernels.quantized.weights import QuantizedWeight, Scheme, unpack_int4


def dequantize(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """The matrix [N, K]: ``(code - zero) * scale``, or ``code * scale + minimum``, in float32, rounded to dtype."""
    scales = _widened(weight.scales, weight)
    if weight.scheme is not Scheme.INT4:
        return (weight.codes.float() * scales).to(dtype)
    codes = unpack_int4(weight).float()
    if weight.minima is not None:
        return (codes * scales + _widened(weight.minima, weight)).to(dtype)
    zeros = 8.0 if weight.zeros is None else _widened(weight.zeros, weight)
    return ((codes - zeros) * scales).to(dtype)


def quantized_matmul(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """x[T, K] @ W^T + bias as [T, N] in x's dtype; sums are float32."""
    wide = round_to_codes(x, torch.float8_e4m3fn) if weight.scheme is Scheme.FP8 else x.float()
    out = wide @ dequantize(weight, torch.float32).t()
    if weight.bias is not None:
        out += weight.bias.float()
    return out.to(x.dtype)


def _widened(per_group: Tensor, weight: QuantizedWeight) -> Tensor:
    """[groups, N] to [N, K]."""
    return per_group.float().repeat_interleave(weight.group, 0)[: weight.k].t()
