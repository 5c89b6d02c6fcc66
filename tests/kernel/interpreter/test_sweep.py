"""Every Triton implementation against the reference, over the catalogue's shapes and beyond them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.kernels import CATALOGUE, PARTS, SHAPES, make_shapes, resolve_ops
from engine.kernels.attend.shapes import AttendShape
from engine.kernels.batch import AttentionSpec
from tests.kernel.batches import make_batch, make_cos_sin, make_tables, num_blocks
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


@pytest.mark.parametrize("implementation", ["cuda", "cuda-invariant"])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8], ids=str)
def test_attention_writes_the_steps_slots_and_reads_no_slot_that_nobody_wrote(
    implementation: str, kv_dtype: torch.dtype
) -> None:
    ops, spec = resolve_ops(implementation), AttentionSpec(4, 2, 16, 0.25, None, 1e-5)
    tables = make_tables([20, 37], 16)
    cache = ops.make_kv_cache(num_blocks(tables), 16, 2, 16, 1, kv_dtype, CPU)[0]
    tensors = [cache.keys, cache.values] if kv_dtype is torch.float32 else [cache.key_scales, cache.value_scales]
    for tensor in tensors:
        tensor.fill_(float("nan"))
    for rows in ([(20, 20), (36, 36)], [(37, 1)]):
        their_tables = tables if len(rows) == 2 else tables[1:]
        batch = make_batch(rows, 16, their_tables)
        before = [tensor.clone() for tensor in tensors]
        qkv = torch.randn(len(batch.positions), 8 * 16)
        out = ops.attend(qkv, cache, batch, make_cos_sin(64, 16), spec, None, None)
        assert torch.isfinite(out).all()
        written = torch.zeros(cache.keys.shape[0] * 16, dtype=torch.bool)
        written[batch.slot_mapping.long()] = True
        for tensor, old in zip(tensors, before, strict=True):
            slots, old_slots = (t.transpose(1, 2).flatten(0, 1) for t in (tensor, old))  # [slots, KV, …]
            assert torch.isfinite(slots[written]).all()
            assert torch.equal(slots[~written].nan_to_num(7.0), old_slots[~written].nan_to_num(7.0))


def test_padding_rows_of_a_graph_leave_the_others_alone() -> None:
    """Rows that share a scratch slot: their keys race for it, and nobody else sees them."""
    ops, spec = resolve_ops("cuda"), AttentionSpec(4, 2, 16, 0.25, None, 1e-5)
    tables = torch.tensor([[1, 2], [0, 0], [0, 0]])
    cache = ops.make_kv_cache(3, 16, 2, 16, 1, torch.float32, CPU)[0]
    alone = ops.make_kv_cache(3, 16, 2, 16, 1, torch.float32, CPU)[0]
    qkv = torch.randn(3, 8 * 16)
    for target, count in ((cache, 3), (alone, 1)):
        torch.manual_seed(1)
        first = make_batch([(18, 18)], 16, tables[:1])
        ops.attend(torch.randn(18, 8 * 16), target, first, make_cos_sin(64, 16), spec, None, None)
        rows = [(19, 1), (1, 1), (1, 1)][:count]
        batch = make_batch(rows, 16, tables[:count])
        out = ops.attend(qkv[:count].clone(), target, batch, make_cos_sin(64, 16), spec, None, None)
        if count == 3:
            padded = out[:1]
    torch.testing.assert_close(padded, out)
    assert torch.equal(cache.keys[1:], alone.keys[1:])
