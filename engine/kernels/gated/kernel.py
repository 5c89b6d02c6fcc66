"""Gated activations on a GPU: elementwise, so bound by memory; a program takes a run of one row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


def silu_mul(x: Tensor) -> Tensor:
    """x[T, 2I] holds gates, then ups: silu(gate) * up as [T, I]; float32 inside, rounded once after silu."""
    return _gated(x, is_gelu=False)


def gelu_mul(x: Tensor) -> Tensor:
    """The same with gelu, by its approximation with tanh."""
    return _gated(x, is_gelu=True)


def _gated(x: Tensor, *, is_gelu: bool) -> Tensor:
    rows, width = x.shape[0], x.shape[1] // 2
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    if rows:
        grid = (rows, triton.cdiv(width, BLOCK))
        _gated_kernel[grid](x, out, width, IS_GELU=is_gelu, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True)
    return out


@triton.jit
def _gated_kernel(x_ptr, out_ptr, width, IS_GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(x_ptr + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    if IS_GELU:
        # tanh(z) = 1 - 2 / (e^2z + 1), which is 1 in float32 from z = 10 on.
        inner = tl.minimum(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate), 20.0)
        activated = 0.5 * gate * (2.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0))
    else:
        activated = gate / (1.0 + tl.exp(tl.minimum(-gate, 80.0)))
    activated = activated.to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * width + columns, (activated * up).to(out_ptr.dtype.element_ty), mask=inside)
