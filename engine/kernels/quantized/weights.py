"""Quantized weights: the layouts that our kernels read, and what makes them from codes or from a packed matrix.

``w[n, k] = (code - zero) * scale``, or ``code * scale + minimum`` where zeros are no integers.

* INT4: codes 0 … 15, two a byte in uint8 ``[K / 2, N]``. Channels of the input go in units of 32: byte row
  ``16 * u + j`` holds channel ``32 * u + j`` in its low half and ``32 * u + 16 + j`` in its high half, so that a
  program unpacks two tiles without moving anything between threads. Scales float16, zeros uint8 or minima float16
  ``[K / group, N]``; neither zeros nor minima: zeros of 8 everywhere.
* INT8: codes int8 ``[N, K]``, scales float32 or float16 ``[K / group, N]``.
* FP8: codes float8 e4m3 ``[N, K]``, scales float32 ``[K / group, N]``, the last group may be short. Activations are
  quantized too, with a scale a row.

A group is a whole row where there is one scale an output channel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

from engine.kernels.packed import FLOAT8, INT4, PackedTensor, read_codes

UNIT = 32  # input channels of int4 that are packed together
GROUPS = (128, 64)  # what groups of 32 that share a scale are joined to


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
    minima: Tensor | None = None

    def to(self, device: torch.device, dtype: torch.dtype, bias: Tensor | None = None) -> QuantizedWeight:
        """The same weight on a device, with this bias in the activations' dtype."""
        return replace(
            self,
            codes=self.codes.to(device),
            scales=self.scales.to(device),
            zeros=None if self.zeros is None else self.zeros.to(device),
            minima=None if self.minima is None else self.minima.to(device),
            bias=None if bias is None else bias.to(device, dtype),
        )


def make_int4(codes: Tensor, scales: Tensor, zeros: Tensor | None, minima: Tensor | None = None) -> QuantizedWeight:
    """From codes[N, K] of 0 … 15 (any integer type), scales[N, K / group], and zeros or minima like scales."""
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
        minima=None if minima is None else minima.t().to(torch.float16).contiguous(),
    )


def unpack_int4(weight: QuantizedWeight) -> Tensor:
    """Codes [N, K] of a packed int4 weight, uint8."""
    packed = weight.codes.view(weight.k // UNIT, 1, UNIT // 2, weight.n)
    return torch.cat([packed & 15, packed >> 4], dim=1).reshape(weight.k, weight.n).t().contiguous()


def make_int8(codes: Tensor, scales: Tensor) -> QuantizedWeight:
    """From int8 codes[N, K] and one scale, scales[N], or scales[N, K / group] with groups of a multiple of 32."""
    n, k = codes.shape
    spread = _spread(scales, n)
    group = k // spread.shape[1]
    if group != k and (k % group or group % UNIT):
        raise ValueError(f"int8 weights need input channels in groups of a multiple of {UNIT}, not {k} of {group}")
    return QuantizedWeight(Scheme.INT8, codes.contiguous(), spread.t().contiguous(), None, None, n, k, group)


def make_fp8(codes: Tensor, scales: Tensor, group: int | None = None) -> QuantizedWeight:
    """From float8_e4m3fn codes[N, K] and one scale, scales[N], or scales[N, ceil(K / group)] of groups of `group`."""
    n, k = codes.shape
    spread = _spread(scales, n).float()
    return QuantizedWeight(
        Scheme.FP8, codes.contiguous(), spread.t().contiguous(), None, None, n, k, min(group or k, k)
    )


def make_from_packed(tensor: PackedTensor, device: torch.device) -> QuantizedWeight | None:
    """What bake packed for any device, laid out for a GPU, the same codes; None where no layout of ours holds it."""
    if tensor.format not in ("int8", *INT4, *FLOAT8) or (tensor.format not in FLOAT8 and tensor.shape[1] % UNIT):
        return None
    moved = PackedTensor(tensor.data.to(device), tensor.shape, tensor.format, tensor.is_gate_up)
    codes, scales, minima, group = read_codes(moved)
    if tensor.format in FLOAT8:
        return make_fp8(codes, scales, group)
    scales, minima = _joined(scales, minima)
    if minima is None:
        return make_int8(codes, scales)
    zeros = _integer_zeros(scales, minima)
    if zeros is None:
        return make_int4(codes, scales, None, minima)
    return make_int4(codes, scales, None if bool((zeros == 8).all()) else zeros)


def _spread(scales: Tensor, n: int) -> Tensor:
    """One scale, scales[N] or scales[N, groups] as [N, groups]."""
    return scales if scales.dim() == 2 else scales.float().reshape(-1, 1).expand(n, 1)


def _joined(scales: Tensor, minima: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Scales and minima of the widest groups that share them: bake repeats those of a checkpoint's wider groups."""
    for size in (scales.shape[1], *(group // UNIT for group in GROUPS)):
        if scales.shape[1] % size == 0 and all(_is_shared(t, size) for t in (scales, minima) if t is not None):
            return scales[:, ::size], None if minima is None else minima[:, ::size]
    return scales, minima


def _is_shared(factors: Tensor, size: int) -> bool:
    groups = factors.reshape(factors.shape[0], -1, size)
    return bool((groups == groups[..., :1]).all())


def _integer_zeros(scales: Tensor, minima: Tensor) -> Tensor | None:
    """uint8 zeros whose products with the scales are exactly the minima, as those of AWQ, GPTQ and Q4_0 are."""
    zeros = torch.where(scales == 0, 0.0, -minima.float() / scales.float()).round()
    is_exact = (-zeros * scales.float()).to(torch.float16) == minima
    return zeros.to(torch.uint8) if bool((is_exact & (zeros >= 0) & (zeros <= 15)).all()) else None
