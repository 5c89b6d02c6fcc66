"""Packed matrices taken apart without the library, and what a GPU makes of them: the same codes, the same values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.kernels import load_op, resolve_ops
from engine.kernels.native.library import Format
from engine.kernels.native.packing import pack, pack_codes, unpack_rows
from engine.kernels.packed import PackedTensor, packed_bytes, unpack
from engine.kernels.quantized.weights import QuantizedWeight, Scheme, make_from_packed, unpack_int4

CPU = torch.device("cpu")
FORMATS = [Format.FLOAT32, Format.BFLOAT16, Format.FLOAT16, Format.INT8, Format.INT4]
dequantize = load_op("dequantize", "reference")


def packed_floats(weight: Tensor, format: Format, is_gate_up: bool = False) -> PackedTensor:
    n, k = weight.shape
    return PackedTensor(pack(weight, format, is_gate_up=is_gate_up).data, (n, k), format.name.lower(), is_gate_up)


def packed_codes(codes: Tensor, scales: Tensor, minima: Tensor | None) -> PackedTensor:
    format = Format.INT8 if minima is None else Format.INT4
    data = pack_codes(codes.to(torch.int8), scales.half(), None if minima is None else minima.half(), format).data
    return PackedTensor(data, (codes.shape[0], codes.shape[1]), format.name.lower(), is_gate_up=False)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
@pytest.mark.parametrize("is_gate_up", [False, True])
@pytest.mark.parametrize(("n", "k"), [(40, 64), (50, 100), (6, 200)])
def test_unpacking_yields_what_the_library_yields(n: int, k: int, format: Format, is_gate_up: bool) -> None:
    weight = torch.randn(n, k)
    tensor = packed_floats(weight, format, is_gate_up)
    assert tensor.nbytes == packed_bytes((n, k), tensor.format, is_gate_up=is_gate_up)
    expected = unpack_rows(pack(weight, format, is_gate_up=is_gate_up), torch.arange(n))
    torch.testing.assert_close(unpack(tensor), expected, rtol=0, atol=1e-6)


def made(tensor: PackedTensor) -> QuantizedWeight:
    weight = make_from_packed(tensor, CPU)
    assert weight is not None
    torch.testing.assert_close(dequantize(weight, torch.float32), unpack(tensor), rtol=0, atol=2e-3)
    return weight


def test_integer_zeros_and_wide_groups_are_found_again() -> None:
    codes, scales = torch.randint(0, 16, (48, 256)), torch.rand(48, 2) * 0.02 + 0.001
    zeros = torch.randint(0, 16, (48, 2))
    halves = scales.half().repeat_interleave(4, 1)
    weight = made(packed_codes(codes, halves, -halves.float() * zeros.repeat_interleave(4, 1)))
    assert (weight.scheme, weight.group, weight.minima) == (Scheme.INT4, 128, None)
    assert torch.equal(unpack_int4(weight), codes.to(torch.uint8))
    assert weight.zeros is not None
    assert torch.equal(weight.zeros.t(), zeros.to(torch.uint8))
    assert torch.equal(weight.scales.t(), scales.half())


def test_symmetric_codes_need_no_zeros_and_one_scale_a_row_is_one_group() -> None:
    codes, scales = torch.randint(0, 16, (16, 96)), (torch.rand(16, 1) * 0.02 + 0.001).half().expand(16, 3)
    weight = made(packed_codes(codes, scales, scales * -8))
    assert (weight.group, weight.zeros, weight.minima) == (96, None, None)


def test_minima_that_are_no_multiples_of_the_scales_stay_minima() -> None:
    weight = made(packed_floats(torch.randn(48, 64), Format.INT4))
    assert (weight.group, weight.zeros) == (32, None)
    assert weight.minima is not None


def test_int8_keeps_its_groups() -> None:
    weight = made(packed_floats(torch.randn(48, 64), Format.INT8))
    assert (weight.scheme, weight.group, weight.scales.shape) == (Scheme.INT8, 32, (2, 48))
    assert made(packed_codes(torch.randint(-128, 128, (16, 64)), torch.full((16, 2), 0.01), None)).group == 64


@pytest.mark.parametrize("format", ["fp8", "fp8_block"])
def test_float8_keeps_its_codes(format: str) -> None:
    codes = (torch.randn(32, 200) * 20).to(torch.float8_e4m3fn)
    scales = torch.rand(1 if format == "fp8" else 2, 32) * 0.02
    data = torch.cat([scales.view(torch.uint8).flatten(), codes.view(torch.uint8).flatten()])
    tensor = PackedTensor(data, (32, 200), format, is_gate_up=False)
    assert tensor.nbytes == packed_bytes(tensor.shape, format, is_gate_up=False)
    weight = made(tensor)
    assert torch.equal(weight.codes.view(torch.uint8), codes.view(torch.uint8))
    x, ops = torch.randn(3, 200), resolve_ops("cpu")
    product = ops.norm_linear(x, None, 0.0, ops.prepare_linear(tensor, None, torch.float32, CPU))
    torch.testing.assert_close(product, x @ unpack(tensor).bfloat16().float().t(), rtol=1e-4, atol=1e-3)


def test_what_a_gpu_has_no_layout_for_stays_floats() -> None:
    assert make_from_packed(packed_floats(torch.randn(16, 64), Format.BFLOAT16), CPU) is None
    assert make_from_packed(packed_floats(torch.randn(16, 40), Format.INT8), CPU) is None
