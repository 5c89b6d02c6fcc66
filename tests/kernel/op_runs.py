"""Runs one implementation of an op on one of its catalogue shapes, with inputs that depend on the shape alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.kernels import load_op, resolve_ops
from engine.kernels.attend.shapes import AttendShape
from engine.kernels.batch import AttentionSpec, StepBatch
from engine.kernels.embedding.shapes import EmbeddingShape
from engine.kernels.gated.shapes import GatedShape
from engine.kernels.linear.shapes import LinearShape
from engine.kernels.lora.adapters import Adapters
from engine.kernels.lora.shapes import LoraShape
from engine.kernels.matmul.shapes import MatmulShape
from engine.kernels.moe.grouping import group_rows
from engine.kernels.moe.shapes import MoeShape
from engine.kernels.norm.shapes import NormShape
from engine.kernels.quantized.shapes import QuantizedShape
from engine.kernels.quantized.weights import QuantizedWeight, Scheme, make_fp8, make_int4, make_int8
from engine.kernels.sample.rows import Drafts, DrawRows, SeenTokens
from engine.kernels.sample.shapes import DraftShape, DrawShape, SeenShape
from engine.sampling.noise import row_keys
from tests.kernel.batches import make_batch, make_cos_sin, make_tables, num_blocks

Result = Tensor | tuple[Tensor, ...]


def run_op(
    op: str,
    implementation: str,
    shape: Any,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
) -> Result:
    """What the op returns, or has changed; the same inputs whatever the implementation and the device."""
    torch.manual_seed(0)
    if op == "attend":
        return run_attend(implementation, shape, device, dtype, kv_dtype)
    return RUNS[type(shape)](op, implementation, shape, device, dtype)


def _embedding(op: str, implementation: str, shape: EmbeddingShape, device: torch.device, dtype: torch.dtype) -> Tensor:
    ops = resolve_ops(implementation)
    table = ops.prepare_embedding(torch.randn(shape.vocab_size, shape.width), dtype, device)
    return ops.embedding(torch.randint(0, shape.vocab_size, (shape.tokens,)).to(device), table)


def _linear(op: str, implementation: str, shape: LinearShape, device: torch.device, dtype: torch.dtype) -> Tensor:
    ops = resolve_ops(implementation)
    doubled = 2 if op == "norm_linear_swiglu" else 1
    weight = torch.randn(doubled * shape.out_features, shape.in_features) * 0.1
    bias = torch.randn(weight.shape[0]) if shape.has_bias else None
    norm = torch.rand(shape.in_features).to(device, dtype) if shape.has_norm else None
    x = torch.randn(shape.rows, shape.in_features).to(device, dtype)
    residual = torch.randn(shape.rows, shape.out_features).to(device, dtype)
    if op == "linear_add_":
        ops.linear_add_(residual, x, ops.prepare_linear(weight, bias, dtype, device))
        return residual
    if op == "norm_linear_argmax":
        pick: Callable[..., Tensor] = load_op(op, implementation)
        return pick(x, norm, 1e-5, ops.prepare_linear(weight, bias, dtype, device))
    if op == "norm_linear":
        return ops.norm_linear(x, norm, 1e-5, ops.prepare_linear(weight, bias, dtype, device))
    return ops.norm_linear_swiglu(x, norm, 1e-5, ops.prepare_gate_up(weight, bias, dtype, device))


def run_attend(
    implementation: str,
    shape: AttendShape,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """The contexts first, as prefill without what is new, then the step that is looked at."""
    ops = resolve_ops(implementation)
    tables = make_tables([context for context, _ in shape.rows], shape.block_size)
    kv_layer = ops.make_kv_cache(
        num_blocks(tables), shape.block_size, shape.num_kv_heads, shape.head_dim, 1, kv_dtype or dtype, device
    )[0]
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    norms = [torch.rand(shape.head_dim).to(device, dtype) if shape.has_qk_norm else None for _ in range(2)]
    spec = AttentionSpec(
        shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.head_dim**-0.5, shape.sliding_window, 1e-5, soft_cap
    )
    cos_sin = make_cos_sin(256, shape.head_dim).to(device)
    old = [index for index, (context, new) in enumerate(shape.rows) if context > new]
    steps = [([(shape.rows[i][0] - shape.rows[i][1],) * 2 for i in old], tables[old])] if old else []
    out = torch.zeros(0)
    for rows, their_tables in [*steps, (list(shape.rows), tables)]:
        batch = make_batch(rows, shape.block_size, their_tables)
        qkv = torch.randn(batch.positions.shape[0], width).to(device, dtype)
        out = ops.attend(qkv, kv_layer, moved(batch, device), cos_sin, spec, *norms)
    return out


def moved(batch: StepBatch, device: torch.device) -> StepBatch:
    """The batch with its tensors on a device."""
    values = {name: getattr(batch, name) for name in batch.__slots__}
    return StepBatch(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in values.items()})


def _norm(op: str, implementation: str, shape: NormShape, device: torch.device, dtype: torch.dtype) -> Result:
    x = torch.randn(shape.rows, shape.width).to(device, dtype)
    weight = torch.rand(shape.width).to(device, dtype)
    if op == "rms_norm":
        return load_op(op, implementation)(x, weight, 1e-5)
    residual = torch.randn(shape.rows, shape.width).to(device, dtype)
    return load_op(op, implementation)(residual, x, weight, 1e-5), residual


def _gated(op: str, implementation: str, shape: GatedShape, device: torch.device, dtype: torch.dtype) -> Tensor:
    x = torch.randn(shape.rows, 2 * shape.width).to(device, dtype) * 3
    return load_op(op, implementation)(x)


def _matmul(op: str, implementation: str, shape: MatmulShape, device: torch.device, dtype: torch.dtype) -> Tensor:
    x = torch.randn(shape.rows, shape.in_features).to(device, dtype)
    weight = torch.randn(shape.out_features, shape.in_features).to(device, dtype) * 0.1
    bias = torch.randn(shape.out_features).to(device, dtype) if shape.has_bias else None
    addend = torch.randn(shape.rows, shape.out_features).to(device, dtype) if shape.has_addend else None
    return load_op(op, implementation)(x, weight, bias, addend)


def _quantized(op: str, implementation: str, shape: QuantizedShape, device: torch.device, dtype: torch.dtype) -> Tensor:
    weight = make_quantized(shape)
    bias = torch.randn(shape.out_features) if shape.has_bias else None
    x = torch.randn(shape.rows, shape.in_features).to(device, dtype)
    run: Callable[..., Tensor] = load_op(op, implementation)
    moved_weight = weight.to(device, dtype, bias)
    return run(moved_weight, dtype) if op == "dequantize" else run(x, moved_weight)


def make_quantized(shape: QuantizedShape) -> QuantizedWeight:
    """A random weight of the shape's scheme."""
    n, k = shape.out_features, shape.in_features
    if shape.scheme is Scheme.INT4:
        groups = k // shape.group
        zeros = torch.randint(0, 16, (n, groups)) if shape.has_zeros else None
        minima = torch.randn(n, groups) * 0.1 if shape.has_minima else None
        return make_int4(torch.randint(0, 16, (n, k)), torch.rand(n, groups) * 0.02 + 0.001, zeros, minima)
    groups = -(-k // shape.group) if shape.is_grouped else 1
    if shape.scheme is Scheme.INT8:
        return make_int8(torch.randint(-128, 128, (n, k)).to(torch.int8), torch.rand(n, groups) * 0.002 + 0.0001)
    scales = torch.tensor(0.01) if shape.has_zeros else torch.rand(n, groups) * 0.02 + 0.001
    codes = (torch.randn(n, k) * 20).to(torch.float8_e4m3fn)
    return make_fp8(codes, scales, shape.group if shape.is_grouped else None)


def _moe(op: str, implementation: str, shape: MoeShape, device: torch.device, dtype: torch.dtype) -> Result:
    logits = torch.randn(shape.rows, shape.experts).to(device, dtype)
    logits[:, -1] = -30.0  # an expert that nobody chooses
    weights, ids = load_op("moe_route", implementation)(logits, shape.top_k, shape.renormalizes)
    if op == "moe_route":
        return weights, ids
    gate_up = torch.randn(shape.experts, 2 * shape.inner, shape.width).to(device, dtype) * 0.2
    down = torch.randn(shape.experts, shape.width, shape.inner).to(device, dtype) * 0.2
    x = torch.randn(shape.rows, shape.width).to(device, dtype)
    return load_op(op, implementation)(x, gate_up, down, weights, ids)


def _lora(op: str, implementation: str, shape: LoraShape, device: torch.device, dtype: torch.dtype) -> Tensor:
    a = torch.randn(shape.adapters, shape.rank, shape.in_features) * 0.1
    b = torch.randn(shape.adapters, shape.out_features, shape.rank) * 0.1
    adapters = Adapters(a.to(device, dtype), b.to(device, dtype), torch.rand(shape.adapters).to(device))
    x = torch.randn(shape.rows, shape.in_features).to(device, dtype)
    wide = torch.randn(shape.rows, shape.out_features + 7).to(device, dtype)
    chosen = torch.randint(0, shape.adapters + 1, (shape.rows,)).to(device)
    load_op(op, implementation)(wide[:, 3:-4], x, adapters, group_rows(chosen, shape.adapters, 16))
    return wide


def _draw(op: str, implementation: str, shape: DrawShape, device: torch.device, dtype: torch.dtype) -> Tensor:
    count = len(shape.rows)
    logits = torch.randn(count, shape.vocab_size) * shape.spread
    if shape.has_ties:
        logits = logits.round()
    if shape.has_masks:
        logits[:, ::2] = float("-inf")
    return load_op(op, implementation)(logits.to(device), make_draw_rows(shape.rows, device))


def make_draw_rows(rows: tuple[tuple[float, int, float, float], ...], device: torch.device) -> DrawRows:
    """Rows of (temperature, top_k, top_p, min_p); row r has seed r and is at position 3 r."""
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    keys = [row_keys(index, 3 * index) for index in range(len(rows))]
    return DrawRows(
        temperature=torch.tensor(columns[0], dtype=torch.float32).to(device),
        top_k=torch.tensor(columns[1], dtype=torch.int32).to(device),
        top_p=torch.tensor(columns[2], dtype=torch.float32).to(device),
        log_min_p=torch.tensor(columns[3], dtype=torch.float32).log().to(device),
        keys=torch.tensor(keys, dtype=torch.int64).view(-1, 2).to(device),
        truncates=any(row[1:] != (0, 1.0, 0.0) for row in rows),
    )


def _penalties(op: str, implementation: str, shape: SeenShape, device: torch.device, dtype: torch.dtype) -> Tensor:
    rows = len(shape.seen)
    ids = [torch.randperm(shape.vocab_size)[:count] for count in shape.seen]
    total = sum(shape.seen)
    seen = SeenTokens(
        starts=torch.tensor([0, *shape.seen]).cumsum(0).int().to(device),
        ids=torch.cat([torch.zeros(0), *ids]).int().to(device),
        counts=torch.randint(0, 4, (total,)).int().to(device),
        repetition=(torch.rand(rows) + 0.8).to(device),
        frequency=torch.rand(rows).to(device),
        presence=torch.rand(rows).to(device),
    )
    logits = torch.randn(rows, shape.vocab_size).to(device)
    load_op(op, implementation)(logits, seen)
    return logits


def _verify(op: str, implementation: str, shape: DraftShape, device: torch.device, dtype: torch.dtype) -> Result:
    targets = [torch.randint(0, 100, (count + 1,)) for count, _ in shape.drafts]
    drafts = [own[:-1].clone() for own in targets]
    for draft, (count, held) in zip(drafts, shape.drafts, strict=True):
        if held < count:
            draft[held] += 1
    counts = [count for count, _ in shape.drafts]
    given = Drafts(
        starts=torch.tensor([0, *counts]).cumsum(0).int().to(device),
        ids=torch.cat([torch.zeros(0, dtype=torch.int64), *drafts]).to(device),
        longest=max(counts, default=0),
    )
    flat = torch.cat([torch.zeros(0, dtype=torch.int64), *targets]).to(device)
    return load_op(op, implementation)(flat, given)


RUNS: dict[type, Callable[..., Result]] = {
    EmbeddingShape: _embedding,
    LinearShape: _linear,
    NormShape: _norm,
    GatedShape: _gated,
    MatmulShape: _matmul,
    QuantizedShape: _quantized,
    MoeShape: _moe,
    LoraShape: _lora,
    DrawShape: _draw,
    SeenShape: _penalties,
    DraftShape: _verify,
}
