"""The dense product in Triton, with the one tile that batch-invariant mode needs.

cuBLAS is faster and picks its kernel by the shape; here every row's sums run over K in steps of `DEPTH`, in the same
instructions, whatever the number of rows. Columns are few to a program, so that one row still fills most of a chip.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, DEPTH = 64, 64, 64


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None) -> Tensor:
    """x[T, K] @ weight[N, K]^T (+ bias[N]) (+ addend[T, N]) as [T, N] in x's dtype; sums are float32."""
    rows, k = x.shape
    width = weight.shape[0]
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    if rows:
        grid = (triton.cdiv(width, COLUMNS), triton.cdiv(rows, ROWS))
        _matmul_kernel[grid](
            x,
            weight,
            bias,
            addend,
            out,
            rows,
            width,
            k,
            x.stride(0),
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            DEPTH=DEPTH,
            num_warps=4,
            num_stages=2 if x.dtype == torch.float32 else 3,
            enable_fp_fusion=True,
        )
    return out


@triton.jit(do_not_specialize=["rows"])
def _matmul_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    addend_ptr,
    out_ptr,
    rows,
    width,
    k,
    x_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    has_row, has_column = (row < rows)[:, None], (column < width)[None, :]
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, k, DEPTH):
        channel = start + tl.arange(0, DEPTH)
        inside = channel < k
        x = tl.load(
            x_ptr + row.to(tl.int64)[:, None] * x_stride + channel[None, :],
            mask=has_row & inside[None, :],
            other=0.0,
        )
        weight = tl.load(
            weight_ptr + column.to(tl.int64)[None, :] * k + channel[:, None],
            mask=has_column & inside[:, None],
            other=0.0,
        )
        acc = tl.dot(x, weight, acc, input_precision="ieee")
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    if addend_ptr is not None:
        acc += tl.load(addend_ptr + place, mask=has_row & has_column, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=has_row & has_column)
