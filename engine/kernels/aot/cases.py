"""What the ops are run on: shapes of real models, on tensors that have no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.kernels import load_op, resolve_ops
from engine.kernels.attend.cache import make_kv_cache
from engine.kernels.batch import AttentionSpec, StepBatch
from engine.kernels.chip import Chip
from engine.kernels.linear.reference import LinearWeight
from engine.kernels.lora.adapters import Adapters
from engine.kernels.moe.grouping import group_rows
from engine.kernels.quantized.weights import QuantizedWeight, Scheme
from engine.kernels.sample.rows import Drafts, DrawRows, SeenTokens

META = torch.device("meta")
BF16 = torch.bfloat16
BLOCK_SIZE = 16
CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class Case:
    """One call of an op, named for the report."""

    op: str
    shape: str
    run: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Attention:
    """Heads of a real model."""

    model: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    soft_cap: float | None = None
    has_qk_norm: bool = False


LLAMA = Attention("Llama-3.1-8B", 32, 8, 128)
ATTENTIONS = (
    LLAMA,
    Attention("Qwen2.5-7B", 28, 4, 128),
    Attention("Qwen3-8B", 32, 8, 128, has_qk_norm=True),
    Attention("SmolLM2-135M", 9, 3, 64),
    Attention("Phi-3-mini", 32, 32, 96, window=2047),
    Attention("Phi-2 heads", 32, 32, 80),
    Attention("Gemma-2-9B", 16, 8, 256, window=4096, soft_cap=50.0),
)
HIDDEN, INTERMEDIATE, VOCAB, QKV = 4096, 14336, 128256, 6144  # Llama-3.1-8B


def make_cases(chip: Chip) -> Iterator[Case]:
    """Everything that this chip may be asked to run."""
    yield from _dense()
    yield from _quantized(chip)
    yield from _experts()
    yield from _adapters()
    yield from _sampling()
    for attention in ATTENTIONS:
        yield from _attention(attention, BF16)
    narrow = (torch.int8, torch.float8_e4m3fn) if chip.has_fp8 else (torch.int8,)
    for dtype in narrow:
        yield from _attention(LLAMA, dtype)


def _experts() -> Iterator[Case]:
    """Qwen3-30B-A3B: 128 experts, 8 a token."""
    experts, top_k, hidden, inner = 128, 8, 2048, 768
    gate_up, down = _empty(experts, 2 * inner, hidden), _empty(experts, hidden, inner)
    yield Case("moe_route", f"{experts}", partial(load_op("moe_route", "cuda"), _empty(32, experts), top_k, True))
    for tokens in (1, 2048):
        x, ids = _empty(tokens, hidden), _empty(tokens, top_k, dtype=torch.int32)
        weights = _empty(tokens, top_k, dtype=torch.float32)
        run = partial(load_op("moe_experts", "cuda"), x, gate_up, down, weights, ids)
        yield Case("moe_experts", f"{tokens} tokens", run)


def _adapters() -> Iterator[Case]:
    for rank in (8, 16, 64):
        adapters = Adapters(_empty(8, rank, HIDDEN), _empty(8, QKV, rank), _empty(8, dtype=torch.float32))
        groups = group_rows(_empty(32, dtype=torch.int32), 8, 16)
        run = partial(load_op("lora_add_", "cuda"), _empty(32, QKV), _empty(32, HIDDEN), adapters, groups)
        yield Case("lora_add_", f"rank {rank}", run)


def _sampling() -> Iterator[Case]:
    rows = 32
    logits, floats = _empty(rows, VOCAB, dtype=torch.float32), _empty(rows, dtype=torch.float32)
    integers, starts = _empty(1000, dtype=torch.int32), _empty(rows + 1, dtype=torch.int32)
    keys = _empty(rows, 2, dtype=torch.int64)
    for truncates in (False, True):
        how = DrawRows(floats, _empty(rows, dtype=torch.int32), floats, floats, keys, truncates)
        yield Case("draw_tokens", f"{VOCAB}", partial(load_op("draw_tokens", "cuda"), logits, how))
    seen = SeenTokens(starts, integers, integers, floats, floats, floats)
    yield Case("apply_penalties_", f"{VOCAB}", partial(load_op("apply_penalties_", "cuda"), logits, seen))
    drafts = Drafts(starts, _empty(160, dtype=torch.int64), 5)
    targets = _empty(192, dtype=torch.int64)
    yield Case("verify_greedy", "5 drafts", partial(load_op("verify_greedy", "cuda"), targets, drafts))


def _empty(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def _dense() -> Iterator[Case]:
    ids, x = _empty(32, dtype=torch.int64), _empty(32, HIDDEN)
    ops, invariant = resolve_ops("cuda"), resolve_ops("cuda-invariant")
    table = ops.prepare_embedding(_empty(VOCAB, HIDDEN), BF16, META)
    norm, down = _empty(HIDDEN), _empty(32, INTERMEDIATE)
    yield Case("embedding", f"{HIDDEN}", partial(ops.embedding, ids, table))
    yield Case(
        "add_rms_norm_", f"{HIDDEN}", partial(load_op("add_rms_norm_", "cuda"), x, _empty(32, HIDDEN), norm, 1e-5)
    )
    yield Case("gelu_mul", f"{INTERMEDIATE}", partial(load_op("gelu_mul", "cuda"), _empty(32, 2 * INTERMEDIATE)))
    for name, of in (("", ops), (" invariant", invariant)):
        gate_up = LinearWeight(_empty(2 * INTERMEDIATE, HIDDEN), None)
        yield Case(f"norm_linear_swiglu{name}", f"{HIDDEN}", partial(of.norm_linear_swiglu, x, norm, 1e-5, gate_up))
        yield Case(
            f"linear_add_{name}",
            f"{HIDDEN}",
            partial(of.linear_add_, x, down, LinearWeight(_empty(HIDDEN, INTERMEDIATE), None)),
        )
    biased = LinearWeight(_empty(QKV, HIDDEN), _empty(QKV))
    yield Case("norm_linear invariant", "biased", partial(invariant.norm_linear, x, norm, 1e-5, biased))


def _quantized(chip: Chip) -> Iterator[Case]:
    quantized_matmul, dequantize = load_op("quantized_matmul", "cuda"), load_op("dequantize", "cuda")
    schemes = [scheme for scheme in Scheme if chip.has_fp8 or scheme is not Scheme.FP8]
    for scheme in schemes:
        weight = quantized_weight(scheme, HIDDEN, INTERMEDIATE)
        for rows in (1, 16, 32, 64, 512):
            yield Case(
                "quantized_matmul",
                f"{scheme.value} {rows} rows",
                partial(quantized_matmul, _empty(rows, INTERMEDIATE), weight),
            )
        yield Case("dequantize", scheme.value, partial(dequantize, weight, BF16))
    yield from _grouped(chip)


def _grouped(chip: Chip) -> Iterator[Case]:
    """What bake packed in groups of 32 for a CPU, and float8 in blocks of 128."""
    quantized_matmul, dequantize = load_op("quantized_matmul", "cuda"), load_op("dequantize", "cuda")
    weights = {
        "int4 group 32": quantized_weight(Scheme.INT4, QKV, HIDDEN, group=32),
        "int4 minima": quantized_weight(Scheme.INT4, QKV, HIDDEN, group=32, has_minima=True),
        "int8 group 32": quantized_weight(Scheme.INT8, QKV, HIDDEN, group=32),
    }
    if chip.has_fp8:
        weights["fp8 blocks"] = quantized_weight(Scheme.FP8, QKV, HIDDEN, group=128)
    for name, weight in weights.items():
        for rows in (1, 32, 512):
            yield Case(
                "quantized_matmul", f"{name} {rows} rows", partial(quantized_matmul, _empty(rows, HIDDEN), weight)
            )
        yield Case("dequantize", name, partial(dequantize, weight, BF16))


def quantized_weight(
    scheme: Scheme, n: int, k: int, group: int | None = None, *, has_minima: bool = False
) -> QuantizedWeight:
    """A weight [n, k] of a scheme, without memory; groups of 128 (int4) or whole rows unless `group` says otherwise."""
    if scheme is Scheme.INT4:
        size = group or 128
        scales, zeros = _empty(k // size, n, dtype=torch.float16), _empty(k // size, n, dtype=torch.uint8)
        codes, minima = _empty(k // 2, n, dtype=torch.uint8), scales if has_minima else None
        return QuantizedWeight(scheme, codes, scales, None if has_minima else zeros, None, n, k, size, minima)
    dtype = torch.int8 if scheme is Scheme.INT8 else torch.float8_e4m3fn
    scales = _empty(k // (group or k), n, dtype=torch.float32)
    return QuantizedWeight(scheme, _empty(n, k, dtype=dtype), scales, None, None, n, k, group or k)


def _attention(model: Attention, kv_dtype: torch.dtype) -> Iterator[Case]:
    cache = make_kv_cache(64, BLOCK_SIZE, model.num_kv_heads, model.head_dim, 1, kv_dtype, META)[0]
    spec = AttentionSpec(
        model.num_heads, model.num_kv_heads, model.head_dim, model.head_dim**-0.5, model.window, 1e-6, model.soft_cap
    )
    norms = [_empty(model.head_dim) if model.has_qk_norm else None for _ in range(2)]
    cos_sin = _empty(CONTEXT, model.head_dim, dtype=torch.float32)
    width = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    kind = model.model + ("" if kv_dtype is BF16 else f" {str(kv_dtype).removeprefix('torch.')} kv")
    steps = {"decode 1": (1, 1, 1), "decode 32": (32, 32, 1), "decode 256": (256, 256, 1), "prefill 2k": (4, 2048, 512)}
    for step, (rows, tokens, longest) in steps.items():
        batch = make_batch(rows, tokens, longest)
        qkv = _empty(tokens, width)
        for name in ("cuda", "cuda-invariant") if tokens == 2048 else ("cuda",):
            run = partial(resolve_ops(name).attend, qkv, cache, batch, cos_sin, spec, *norms)
            yield Case(f"attend{name.removeprefix('cuda')}", f"{kind} {step}", run)


def make_batch(rows: int, tokens: int, longest: int) -> StepBatch:
    """A step of this size."""
    return StepBatch(
        positions=_empty(tokens, dtype=torch.int32),
        slot_mapping=_empty(tokens, dtype=torch.int32),
        query_start_loc=_empty(rows + 1, dtype=torch.int32),
        seq_lens=_empty(rows, dtype=torch.int32),
        block_tables=_empty(rows, CONTEXT // BLOCK_SIZE, dtype=torch.int32),
        block_size=BLOCK_SIZE,
        max_query_len=longest,
        max_seq_len=CONTEXT,
    )
