"""The truth: the weight as floats, and a torch product with it."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.elementwise import round_to_codes
from engine.kernels.quantized.weights import QuantizedWeight, Scheme, unpack_int4


def dequantize(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """The matrix [N, K]: ``(code - zero) * scale`` in float32, rounded to dtype."""
    if weight.scheme is Scheme.INT4:
        zeros = 8.0 if weight.zeros is None else _widened(weight.zeros, weight.group)
        values = (unpack_int4(weight).float() - zeros) * _widened(weight.scales, weight.group)
        return values.to(dtype)
    return (weight.codes.float() * weight.scales[:, None]).to(dtype)


def quantized_matmul(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """x[T, K] @ W^T + bias as [T, N] in x's dtype; sums are float32."""
    wide = round_to_codes(x, torch.float8_e4m3fn) if weight.scheme is Scheme.FP8 else x.float()
    out = wide @ dequantize(weight, torch.float32).t()
    if weight.bias is not None:
        out += weight.bias.float()
    return out.to(x.dtype)


def _widened(per_group: Tensor, group: int) -> Tensor:
    """[K / group, N] to [N, K]."""
    return per_group.float().repeat_interleave(group, 0).t()
