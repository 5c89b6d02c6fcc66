"""Products with quantized weights on a GPU.

Few rows are bound by the bytes of the weight: int4 and int8 codes are read once and become the activations' type in
registers, where they are exact; scales multiply the float32 sums. With many rows the multiplication counts: int4 and
int8 are written out in the activations' type once and given to cuBLAS, fp8 is multiplied as it is. Where a matrix has
too few columns to fill the chip, K is split and the parts are summed in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.chip import chip_of
from engine.kernels.elementwise import LARGEST_CODE
from engine.kernels.quantized.weights import QuantizedWeight, Scheme

MANY_ROWS = 128  # from here on a dense product is faster than unpacking for every tile of rows
MAX_SPLITS = 8


@dataclass(frozen=True, slots=True)
class Tile:
    """What a program computes: rows × columns, `depth` input channels at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def quantized_matmul(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """x[T, K] @ W^T + bias as [T, N] in x's dtype; sums are float32."""
    if x.shape[0] == 0:
        return x.new_empty(0, weight.n)
    if weight.scheme is Scheme.FP8:
        return _fp8_matmul(x.contiguous(), weight)
    if x.shape[0] >= MANY_ROWS:
        return F.linear(x, dequantize(weight, x.dtype), weight.bias)
    return _few_rows(x.contiguous(), weight, _tile(x.shape[0], weight))


def quantized_matmul_invariant(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """The same with one tile and one split whatever the number of rows."""
    if x.shape[0] == 0:
        return x.new_empty(0, weight.n)
    if weight.scheme is Scheme.FP8:
        return _fp8_matmul(x.contiguous(), weight, _tile(1, weight))
    return _few_rows(x.contiguous(), weight, _tile(1, weight))


def dequantize(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """The matrix [N, K]: ``(code - zero) * scale``, or ``code * scale + minimum``, in float32, rounded to dtype."""
    out = torch.empty(weight.n, weight.k, dtype=dtype, device=weight.codes.device)
    if weight.scheme is Scheme.INT4:
        grid = (triton.cdiv(weight.n, 64), weight.k // 32)
        _dequantize_int4_kernel[grid](
            weight.codes,
            weight.scales,
            weight.zeros,
            weight.minima,
            out,
            weight.n,
            K=weight.k,
            GROUP=weight.group,
            COLUMNS=64,
            num_warps=4,
            enable_fp_fusion=True,
        )
    else:
        grid = (weight.n, triton.cdiv(weight.k, 1024))
        _dequantize_rows_kernel[grid](
            weight.codes,
            weight.scales,
            out,
            weight.n,
            K=weight.k,
            GROUP=weight.group,
            BLOCK=1024,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return out


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x[T, K] as e4m3 codes [T, K] and float32 scales [T], the largest code for the largest of each row."""
    rows, width = x.shape
    codes = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    _quantize_rows_kernel[(rows,)](
        x,
        codes,
        scales,
        width,
        LARGEST_CODE=LARGEST_CODE[torch.float8_e4m3fn],
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
        enable_fp_fusion=True,
    )
    return codes, scales


def _tile(rows: int, weight: QuantizedWeight) -> Tile:
    has_groups = weight.scheme is Scheme.INT4 or weight.group < weight.k
    depth = min(weight.group & -weight.group, 128) if has_groups else 128  # input channels that share a scale
    if rows <= 16:
        return Tile(16, 64, depth, 4, 4)
    return Tile(32, 64, depth, 4, 3) if rows <= 32 else Tile(64, 64, min(depth, 64), 4, 3)


def _count_splits(tile: Tile, rows: int, weight: QuantizedWeight) -> int:
    programs = triton.cdiv(rows, tile.rows) * triton.cdiv(weight.n, tile.columns)
    wanted = 2 * chip_of(weight.codes.device).num_multiprocessors // programs
    return max(1, min(wanted, MAX_SPLITS, weight.k // (4 * tile.depth)))


def _few_rows(x: Tensor, weight: QuantizedWeight, tile: Tile) -> Tensor:
    rows = x.shape[0]
    splits = _count_splits(tile, tile.rows, weight)
    parts = torch.empty(splits, rows, weight.n, dtype=torch.float32 if splits > 1 else x.dtype, device=x.device)
    grid = (triton.cdiv(weight.n, tile.columns), triton.cdiv(rows, tile.rows), splits)
    kernel = _int4_kernel if weight.scheme is Scheme.INT4 else _int8_kernel
    kernel[grid](
        x,
        weight.codes,
        weight.scales,
        weight.zeros,
        weight.minima,
        weight.bias if splits == 1 else None,
        parts,
        rows,
        weight.n,
        K=weight.k,
        GROUP=weight.group,
        SPLITS=splits,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=True,
    )
    return parts[0] if splits == 1 else _sum_parts(parts, weight.bias, x.dtype)


def _sum_parts(parts: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    splits, rows, width = parts.shape
    out = torch.empty(rows, width, dtype=dtype, device=parts.device)
    grid = (rows, triton.cdiv(width, 1024))
    _sum_parts_kernel[grid](
        parts, bias, out, rows, width, SPLITS=splits, BLOCK=1024, num_warps=4, enable_fp_fusion=True
    )
    return out


def _fp8_matmul(x: Tensor, weight: QuantizedWeight, tile: Tile | None = None) -> Tensor:
    rows = x.shape[0]
    many = Tile(128, 128, min(64, weight.group & -weight.group) if weight.group < weight.k else 64, 8, 3)
    tile = tile or (_tile(rows, weight) if rows <= 64 else many)
    codes, row_scales = quantize_rows(x)
    out = torch.empty(rows, weight.n, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(weight.n, tile.columns), triton.cdiv(rows, tile.rows))
    _fp8_kernel[grid](
        codes,
        row_scales,
        weight.codes,
        weight.scales,
        weight.bias,
        out,
        rows,
        weight.n,
        K=weight.k,
        GROUP=weight.group,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=True,
    )
    return out


@triton.jit
def _store_rows(acc, bias_ptr, out_ptr, row, column, rows, width):
    """acc (+ bias) to out[rows, width]; sums are float32 until here."""
    inside = (row < rows)[:, None] & (column < width)[None, :]
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    target = out_ptr + row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(target, acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _int4_kernel(
    x_ptr,
    codes_ptr,
    scales_ptr,
    zeros_ptr,
    minima_ptr,
    bias_ptr,
    parts_ptr,
    rows,
    width,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """ROWS × COLUMNS of the product, DEPTH input channels (of one group) at a time, in one split of K."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    has_row, has_column = (row < rows)[:, None], (column < width)[None, :]
    byte = tl.arange(0, DEPTH // 2)
    low = byte // 16 * 32 + byte % 16  # channel in the low half of the byte; the high half's is 16 further
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    steps: tl.constexpr = (K // DEPTH + SPLITS - 1) // SPLITS
    for step in range(split * steps, tl.minimum(split * steps + steps, K // DEPTH)):
        start = step * DEPTH
        x_low = tl.load(x_ptr + row.to(tl.int64)[:, None] * K + (start + low)[None, :], mask=has_row, other=0.0)
        x_high = tl.load(x_ptr + row.to(tl.int64)[:, None] * K + (start + low + 16)[None, :], mask=has_row, other=0.0)
        place = (start // 2 + byte).to(tl.int64)[:, None] * width + column[None, :]
        codes = tl.load(codes_ptr + place, mask=has_column, other=0)
        group = start // GROUP * width + column
        scale = tl.load(scales_ptr + group, mask=column < width, other=0.0).to(tl.float32)
        if zeros_ptr is not None:
            zero = tl.load(zeros_ptr + group, mask=column < width, other=0).to(tl.float32)[None, :]
        else:
            zero = 8.0
        # Codes less their zero are small integers: exact in every type that a matrix instruction takes.
        low_values = ((codes & 15).to(tl.float32) - zero).to(x_low.dtype)
        high_values = ((codes >> 4).to(tl.float32) - zero).to(x_high.dtype)
        part = tl.dot(x_low, low_values, input_precision="ieee")
        part = tl.dot(x_high, high_values, part, input_precision="ieee")
        acc += part * scale[None, :]
        if minima_ptr is not None:
            # code * scale + minimum is (code - 8) * scale and, for every channel, minimum + 8 * scale.
            minimum = tl.load(minima_ptr + group, mask=column < width, other=0.0).to(tl.float32)
            total = tl.sum(x_low.to(tl.float32), axis=1) + tl.sum(x_high.to(tl.float32), axis=1)
            acc += total[:, None] * (minimum + 8.0 * scale)[None, :]
    _store_rows(acc, bias_ptr, parts_ptr + split.to(tl.int64) * rows * width, row, column, rows, width)


@triton.jit(do_not_specialize=["rows"])
def _int8_kernel(
    x_ptr,
    codes_ptr,
    scales_ptr,
    zeros_ptr,
    minima_ptr,
    bias_ptr,
    parts_ptr,
    rows,
    width,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The same for int8 codes [N, K]; zeros_ptr and minima_ptr are of no use here."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    steps: tl.constexpr = ((K + DEPTH - 1) // DEPTH + SPLITS - 1) // SPLITS
    first = split * steps * DEPTH
    for start in range(first, tl.minimum(first + steps * DEPTH, K), DEPTH):
        channel = start + tl.arange(0, DEPTH)
        inside = channel < K
        x = tl.load(
            x_ptr + row.to(tl.int64)[:, None] * K + channel[None, :],
            mask=(row < rows)[:, None] & inside[None, :],
            other=0.0,
        )
        codes = tl.load(
            codes_ptr + column.to(tl.int64)[None, :] * K + channel[:, None],
            mask=(column < width)[None, :] & inside[:, None],
            other=0,
        )
        values = codes.to(tl.float32).to(x.dtype)
        if GROUP < K:
            scale = tl.load(scales_ptr + start // GROUP * width + column, mask=column < width, other=0.0)
            acc += tl.dot(x, values, input_precision="ieee") * scale.to(tl.float32)[None, :]
        else:
            acc = tl.dot(x, values, acc, input_precision="ieee")
    if GROUP == K:
        acc *= tl.load(scales_ptr + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    _store_rows(acc, bias_ptr, parts_ptr + split.to(tl.int64) * rows * width, row, column, rows, width)


@triton.jit(do_not_specialize=["rows"])
def _sum_parts_kernel(parts_ptr, bias_ptr, out_ptr, rows, width, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """One run of one row: its parts in order, and the bias."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts_ptr + (split * rows + row) * width + column, mask=inside, other=0.0)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + column, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _fp8_kernel(
    x_ptr,
    row_scales_ptr,
    codes_ptr,
    scales_ptr,
    bias_ptr,
    out_ptr,
    rows,
    width,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """e4m3 times e4m3, sums in float32; the scales of the column's groups, then the row's."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, DEPTH):
        channel = start + tl.arange(0, DEPTH)
        inside = channel < K
        x = tl.load(
            x_ptr + row.to(tl.int64)[:, None] * K + channel[None, :],
            mask=(row < rows)[:, None] & inside[None, :],
            other=0.0,
        )
        codes = tl.load(
            codes_ptr + column.to(tl.int64)[None, :] * K + channel[:, None],
            mask=(column < width)[None, :] & inside[:, None],
            other=0.0,
        )
        if GROUP < K:
            scale = tl.load(scales_ptr + start // GROUP * width + column, mask=column < width, other=0.0)
            acc += tl.dot(x, codes) * scale[None, :]
        else:
            acc = tl.dot(x, codes, acc)
    acc *= tl.load(row_scales_ptr + row, mask=row < rows, other=0.0)[:, None]
    if GROUP == K:
        acc *= tl.load(scales_ptr + column, mask=column < width, other=0.0)[None, :]
    _store_rows(acc, bias_ptr, out_ptr, row, column, rows, width)


@triton.jit
def _quantize_rows_kernel(x_ptr, codes_ptr, scales_ptr, width, LARGEST_CODE: tl.constexpr, BLOCK: tl.constexpr):
    """One row: its largest value gets the largest code."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x), axis=0)
    scale = tl.where(largest > 0, largest / LARGEST_CODE, 1.0)
    tl.store(scales_ptr + row, scale)
    # A quotient that rounds past the largest code would become NaN.
    codes = tl.minimum(tl.maximum(x / scale, -LARGEST_CODE), LARGEST_CODE)
    tl.store(codes_ptr + row * width + column, codes.to(codes_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _dequantize_int4_kernel(
    codes_ptr,
    scales_ptr,
    zeros_ptr,
    minima_ptr,
    out_ptr,
    width,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One unit of 32 input channels of COLUMNS output channels, from [K / 2, N] to [N, K]."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    unit = tl.program_id(1)
    byte = tl.arange(0, 16)
    has_column = (column < width)[None, :]
    place = (unit * 16 + byte).to(tl.int64)[:, None] * width + column[None, :]
    codes = tl.load(codes_ptr + place, mask=has_column, other=0)
    group = unit * 32 // GROUP * width + column
    scale = tl.load(scales_ptr + group, mask=column < width, other=0.0).to(tl.float32)[None, :]
    if zeros_ptr is not None:
        zero = tl.load(zeros_ptr + group, mask=column < width, other=0).to(tl.float32)[None, :]
    else:
        zero = 8.0
    target = out_ptr + column.to(tl.int64)[None, :] * K + (unit * 32 + byte)[:, None]
    low = ((codes & 15).to(tl.float32) - zero) * scale
    high = ((codes >> 4).to(tl.float32) - zero) * scale
    if minima_ptr is not None:
        minimum = tl.load(minima_ptr + group, mask=column < width, other=0.0).to(tl.float32)[None, :]
        low += minimum + 8.0 * scale
        high += minimum + 8.0 * scale
    tl.store(target, low.to(out_ptr.dtype.element_ty), mask=has_column)
    tl.store(target + 16, high.to(out_ptr.dtype.element_ty), mask=has_column)


@triton.jit
def _dequantize_rows_kernel(
    codes_ptr, scales_ptr, out_ptr, rows, K: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    """A run of one row of int8 or e4m3 codes."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < K
    codes = tl.load(codes_ptr + row * K + column, mask=inside, other=0.0).to(tl.float32)
    scales = tl.load(scales_ptr + (column // GROUP).to(tl.int64) * rows + row, mask=inside, other=0.0)
    tl.store(out_ptr + row * K + column, (codes * scales.to(tl.float32)).to(out_ptr.dtype.element_ty), mask=inside)
