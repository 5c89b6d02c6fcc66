"""Quantized weights: the layouts that our kernels read, and what makes them from a checkpoint's codes.

``w[n, k] = (code - zero) * scale``.

* INT4: codes 0 … 15, two a byte in uint8 ``[K / 2, N]``. Channels of the input go in units of 32: byte row
  ``16 * u + j`` holds channel ``32 * u + j`` in its low half and ``32 * u + 16 + j`` in its high half, so that a
  program unpacks two tiles without moving anything between threads. Scales float16 and zeros uint8 ``[K / group, N]``;
  no zeros: 8 everywhere.
* INT8: codes int8 ``[N, K]``, scales float32 ``[N]``.
* FP8: codes float8 e4m3 ``[N, K]``, scales float32 ``[N]``; a scale for the whole matrix is repeated. Activations are
  quantized too, with a scale a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

UNIT = 32  # input channels of int4 that are packed together


class Scheme(Enum):
    """How a weight is quantized."""

    INT4 = "int4"
    INT8 = "int8"
    FP8 = "fp8"


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A quantized [n, k] matrix, laid out as the module docstring says."""

    scheme: Scheme
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    bias: Tensor | None
    n: int
    k: int
    group: int  # input channels that share a scale; k where a whole row does

    def to(self, device: torch.device, dtype: torch.dtype, bias: Tensor | None = None) -> QuantizedWeight:
        """The same weight on a device, with this bias in the activations' dtype."""
        return replace(
            self,
            codes=self.codes.to(device),
            scales=self.scales.to(device),
            zeros=None if self.zeros is None else self.zeros.to(device),
            bias=None if bias is None else bias.to(device, dtype),
        )


def make_int4(codes: Tensor, scales: Tensor, zeros: Tensor | None) -> QuantizedWeight:
    """From codes[N, K] of 0 … 15 (any integer type), scales[N, K / group] and zeros like scales, or None for 8."""
    n, k = codes.shape
    groups = scales.shape[1]
    if k % UNIT or k % groups or (k // groups) % UNIT:
        raise ValueError(f"int4 weights need input channels in groups of a multiple of {UNIT}, not {k} in {groups}")
    units = codes.t().to(torch.uint8).reshape(k // UNIT, 2, UNIT // 2, n)
    packed = (units[:, 0] | (units[:, 1] << 4)).reshape(k // 2, n).contiguous()
    return QuantizedWeight(
        scheme=Scheme.INT4,
        codes=packed,
        scales=scales.t().to(torch.float16).contiguous(),
        zeros=None if zeros is None else zeros.t().to(torch.uint8).contiguous(),
        bias=None,
        n=n,
        k=k,
        group=k // groups,
    )


def unpack_int4(weight: QuantizedWeight) -> Tensor:
    """Codes [N, K] of a packed int4 weight, uint8."""
    packed = weight.codes.view(weight.k // UNIT, 1, UNIT // 2, weight.n)
    return torch.cat([packed & 15, packed >> 4], dim=1).reshape(weight.k, weight.n).t().contiguous()


def make_int8(codes: Tensor, scales: Tensor) -> QuantizedWeight:
    """From int8 codes[N, K] and scales[N], or one scale."""
    return _per_channel(Scheme.INT8, codes, scales)


def make_fp8(codes: Tensor, scales: Tensor) -> QuantizedWeight:
    """From float8_e4m3fn codes[N, K] and scales[N], or one scale."""
    return _per_channel(Scheme.FP8, codes, scales)


def _per_channel(scheme: Scheme, codes: Tensor, scales: Tensor) -> QuantizedWeight:
    n, k = codes.shape
    expanded = scales.float().reshape(-1).expand(n).contiguous()
    return QuantizedWeight(scheme, codes.contiguous(), expanded, None, None, n, k, k)
