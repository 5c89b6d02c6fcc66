"""RMSNorm on a GPU: one program a row, the row in registers, read once and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x[T, K] / sqrt(mean(x²) + eps) · weight[K]; float32 inside, the result contiguous in x's dtype."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, weight, out, eps)
    return out


def add_rms_norm_(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual[T, K] += x[T, K], in place; the RMSNorm of the sum. Rounds as the two ops one after the other do."""
    out = torch.empty(residual.shape, dtype=residual.dtype, device=residual.device)
    _launch(residual, x, weight, out, eps)
    return out


def _launch(x: Tensor, addend: Tensor | None, weight: Tensor, out: Tensor, eps: float) -> None:
    rows, width = x.shape
    if rows == 0:
        return
    block = triton.next_power_of_2(width)
    _rms_norm_kernel[(rows,)](
        x,
        addend,
        weight,
        out,
        x.stride(0),
        addend.stride(0) if addend is not None else 0,
        eps,
        WIDTH=width,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
        enable_fp_fusion=True,
    )


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    addend_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    addend_stride,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if addend_ptr is not None:
        addend = tl.load(addend_ptr + row * addend_stride + columns, mask=inside, other=0.0).to(tl.float32)
        total = (x + addend).to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + row * x_stride + columns, total, mask=inside)
        x = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + eps)
    # Rounded to the model's type before the weight is applied, as Hugging Face's models do.
    normed = (x * scale).to(out_ptr.dtype.element_ty).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + columns, (normed * weight).to(out_ptr.dtype.element_ty), mask=inside)
