"""Every implementation of every op against the reference, over the catalogue's shapes. A new one is picked up here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.kernels import CATALOGUE, SHAPES, Ops, load_op, make_shapes, resolve_ops
from engine.kernels.attend.shapes import AttendShape
from engine.kernels.batch import AttentionSpec
from engine.kernels.linear.shapes import LinearShape
from tests.kernel.batches import CPU, make_batch, make_cos_sin, make_tables, num_blocks

REFERENCE = resolve_ops("reference")
DEVICES = {"reference": "cpu", "cpu": "cpu", "cuda": "cuda"}
TOLERANCE = {"atol": 2e-4, "rtol": 2e-4}


def _implementations() -> list[str]:
    everywhere = set.intersection(*(set(modules) for modules in CATALOGUE.values()))
    return sorted(everywhere)


def _cases() -> list[Any]:
    return [
        pytest.param(implementation, op, shape, id=f"{implementation}-{op}-{shape}")
        for implementation in _implementations()
        for op in SHAPES
        for shape in make_shapes(op)
    ]


@pytest.mark.parametrize("op", CATALOGUE)
def test_each_op_has_a_reference(op: str) -> None:
    assert callable(load_op(op, "reference"))


@pytest.mark.parametrize(("implementation", "op", "shape"), _cases())
def test_implementation_equals_the_reference(implementation: str, op: str, shape: Any) -> None:
    if DEVICES[implementation] == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    run = {"embedding": _embedding, "attend": _attend}.get(op, _linear)
    torch.manual_seed(0)
    expected = run(REFERENCE, op, shape, CPU)
    torch.manual_seed(0)
    device = torch.device(DEVICES[implementation])
    torch.testing.assert_close(run(resolve_ops(implementation), op, shape, device).cpu(), expected, **TOLERANCE)


def _embedding(ops: Ops, op: str, shape: Any, device: torch.device) -> Tensor:
    table = ops.prepare_embedding(torch.randn(shape.vocab_size, shape.width), torch.float32, device)
    return ops.embedding(torch.randint(0, shape.vocab_size, (shape.tokens,)).to(device), table)


def _linear(ops: Ops, op: str, shape: LinearShape, device: torch.device) -> Tensor:
    doubled = 2 if op == "norm_linear_swiglu" else 1
    weight = torch.randn(doubled * shape.out_features, shape.in_features) * 0.1
    bias = torch.randn(weight.shape[0]) if shape.has_bias else None
    norm = torch.rand(shape.in_features).to(device) if shape.has_norm else None
    x = torch.randn(shape.rows, shape.in_features).to(device)
    residual = torch.randn(shape.rows, shape.out_features).to(device)
    if op == "linear_add_":
        ops.linear_add_(residual, x, ops.prepare_linear(weight, bias, torch.float32, device))
        return residual
    if op == "norm_linear":
        return ops.norm_linear(x, norm, 1e-5, ops.prepare_linear(weight, bias, torch.float32, device))
    return ops.norm_linear_swiglu(x, norm, 1e-5, ops.prepare_gate_up(weight, bias, torch.float32, device))


def _attend(ops: Ops, op: str, shape: AttendShape, device: torch.device) -> Tensor:
    """The contexts first, as prefill without what is new, then the step that is looked at."""
    tables = make_tables([context for context, _ in shape.rows], shape.block_size)
    kv_layer = ops.make_kv_cache(
        num_blocks(tables), shape.block_size, shape.num_kv_heads, shape.head_dim, 1, torch.float32, device
    )[0]
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    norms = [torch.rand(shape.head_dim).to(device) if shape.has_qk_norm else None for _ in range(2)]
    spec = AttentionSpec(
        shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.head_dim**-0.5, shape.sliding_window, 1e-5
    )
    cos_sin = make_cos_sin(256, shape.head_dim).to(device)
    old = [index for index, (context, new) in enumerate(shape.rows) if context > new]
    steps = [([(shape.rows[i][0] - shape.rows[i][1],) * 2 for i in old], tables[old])] if old else []
    out = torch.empty(0)
    for rows, their_tables in [*steps, (list(shape.rows), tables)]:
        batch = make_batch(rows, shape.block_size, their_tables)
        qkv = torch.randn(batch.positions.shape[0], width).to(device)
        out = ops.attend(qkv, kv_layer, _moved(batch, device), cos_sin, spec, *norms)
    return out


def _moved(batch: Any, device: torch.device) -> Any:
    values = {name: getattr(batch, name) for name in batch.__slots__}
    return type(batch)(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in values.items()})
