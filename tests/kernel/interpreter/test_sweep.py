"""Every Triton implementation against the reference, over the catalogue's shapes and beyond them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.kernels import CATALOGUE, PARTS, SHAPES, make_shapes
from engine.kernels.attend.shapes import AttendShape
from tests.kernel.op_runs import run_attend, run_op

CPU = torch.device("cpu")
FLOAT32 = {"atol": 2e-4, "rtol": 2e-4}
BFLOAT16 = {"atol": 4e-2, "rtol": 4e-2}
OPS = CATALOGUE | PARTS


def _cases() -> list[Any]:
    return [
        pytest.param(implementation, op, shape, id=f"{implementation}-{op}-{shape}")
        for op in SHAPES
        for implementation in OPS[op]
        if implementation.startswith("cuda")
        for shape in make_shapes(op)
    ]


@pytest.mark.parametrize(("implementation", "op", "shape"), _cases())
def test_kernel_equals_the_reference(implementation: str, op: str, shape: Any) -> None:
    expected = run_op(op, "reference", shape, CPU)
    torch.testing.assert_close(run_op(op, implementation, shape, CPU), expected, **FLOAT32)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (4, 1), (7, 1), (6, 2)])
@pytest.mark.parametrize("implementation", ["cuda", "cuda-invariant"])
def test_attention_for_each_head_size_and_group(
    head_dim: int, num_heads: int, num_kv_heads: int, implementation: str
) -> None:
    shape = AttendShape(((40, 21), (33, 1)), num_heads, num_kv_heads, head_dim, has_qk_norm=True)
    expected = run_op("attend", "reference", shape, CPU)
    torch.testing.assert_close(run_op("attend", implementation, shape, CPU), expected, **FLOAT32)


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("implementation", ["cuda", "cuda-invariant"])
def test_attention_over_each_type_of_cache(kv_dtype: torch.dtype, implementation: str) -> None:
    shape = AttendShape(((25, 9), (70, 1)), num_kv_heads=1, head_dim=32, has_qk_norm=True)
    expected = run_op("attend", "reference", shape, CPU, torch.bfloat16, kv_dtype)
    found = run_op("attend", implementation, shape, CPU, torch.bfloat16, kv_dtype)
    torch.testing.assert_close(found, expected, **BFLOAT16)


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_decode_over_a_narrow_cache(kv_dtype: torch.dtype) -> None:
    shape = AttendShape(((75, 1), (90, 1), (1, 1)), num_heads=6, num_kv_heads=2, head_dim=80, sliding_window=40)
    expected = run_op("attend", "reference", shape, CPU, torch.float32, kv_dtype)
    torch.testing.assert_close(run_op("attend", "cuda", shape, CPU, torch.float32, kv_dtype), expected, **FLOAT32)


@pytest.mark.parametrize("rows", [((60, 25), (18, 1)), ((70, 1), (9, 1))], ids=["mixed", "decode"])
@pytest.mark.parametrize("implementation", ["cuda", "cuda-invariant"])
def test_attention_with_a_soft_cap(rows: tuple[tuple[int, int], ...], implementation: str) -> None:
    shape = AttendShape(rows, sliding_window=50)
    torch.manual_seed(0)
    expected = run_attend("reference", shape, CPU, soft_cap=2.0)
    torch.manual_seed(0)
    torch.testing.assert_close(run_attend(implementation, shape, CPU, soft_cap=2.0), expected, **FLOAT32)


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm_", "silu_mul", "gelu_mul", "matmul", "norm_linear_swiglu"])
def test_half_precision_rounds_as_the_reference_does(op: str) -> None:
    for shape in make_shapes(op)[:5]:
        expected = run_op(op, "reference", shape, CPU, torch.bfloat16)
        torch.testing.assert_close(run_op(op, "cuda", shape, CPU, torch.bfloat16), expected, **BFLOAT16)
