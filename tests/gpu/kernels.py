"""Times each kernel at the shapes of Llama-3.1-8B, beside torch's own way where it has one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels import load_op, resolve_ops
from engine.kernels.attend.cache import KVCache
from engine.kernels.batch import AttentionSpec, StepBatch
from engine.kernels.chip import chip_of
from engine.kernels.lora.adapters import Adapters
from engine.kernels.moe.grouping import group_rows
from engine.kernels.quantized.weights import QuantizedWeight, Scheme
from engine.kernels.sample.rows import DrawRows
from tests.gpu.report import Report
from tests.gpu.timing import time_each

CUDA = torch.device("cuda", 0)
BF16 = torch.bfloat16
HIDDEN, INTERMEDIATE, VOCAB = 4096, 14336, 128256
SPEC = AttentionSpec(32, 8, 128, 128**-0.5, None, 1e-5)
BLOCK_SIZE = 16
COPIES = 8  # of the data, used in turn: more than the second-level cache holds
DECODE_TARGET, PREFILL_TARGET = 0.8, 0.6


def randn(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """Random values on the card."""
    return torch.randn(shape, dtype=dtype, device=CUDA)


def time_kernels(report: Report) -> None:
    """Every group; one that breaks is reported and the next goes on."""
    groups: dict[str, Callable[[Report], None]] = {
        "elementwise": _elementwise,
        "decode attention": _decode_attention,
        "prefill attention": _prefill_attention,
        "quantized": _quantized,
        "batch-invariant product": _invariant,
        "experts": _experts,
        "adapters": _adapters,
        "sampling": _sampling,
    }
    for name, run in groups.items():
        try:
            run(report)
        except Exception as error:  # one kernel's fault must not hide the others'
            report.fail(name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        torch.cuda.empty_cache()


def _elementwise(report: Report) -> None:
    tokens, weight = 2048, randn(HIDDEN)
    xs, wide = [randn(tokens, HIDDEN) for _ in range(COPIES)], [randn(tokens, 2 * INTERMEDIATE) for _ in range(4)]
    rms_norm, silu_mul = load_op("rms_norm", "cuda"), load_op("silu_mul", "cuda")
    report.add(
        f"rms_norm {tokens} x {HIDDEN}",
        time_each([partial(rms_norm, x, weight, 1e-5) for x in xs]),
        moved=4.0 * tokens * HIDDEN,
        torch_seconds=time_each([partial(F.rms_norm, x, (HIDDEN,), weight, 1e-5) for x in xs]),
    )
    report.add(
        f"silu_mul {tokens} x {INTERMEDIATE}",
        time_each([partial(silu_mul, x) for x in wide]),
        moved=6.0 * tokens * INTERMEDIATE,
        torch_seconds=time_each([lambda x=x: F.silu(x[:, :INTERMEDIATE]) * x[:, INTERMEDIATE:] for x in wide]),
    )


def make_batch(contexts: list[int], new: int) -> StepBatch:
    """Rows of these contexts over blocks in random order, of which the last `new` tokens are computed."""
    width = -(-max(contexts) // BLOCK_SIZE)
    tables = torch.randperm(len(contexts) * width, device=CUDA).view(len(contexts), width).int()
    positions = torch.cat([torch.arange(context - new, context, device=CUDA) for context in contexts])
    owners = torch.arange(len(contexts), device=CUDA).repeat_interleave(new)
    slots = tables[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    return StepBatch(
        positions=positions.int(),
        slot_mapping=slots.int(),
        query_start_loc=torch.arange(len(contexts) + 1, device=CUDA).mul(new).int(),
        seq_lens=torch.tensor(contexts, device=CUDA).int(),
        block_tables=tables,
        block_size=BLOCK_SIZE,
        max_query_len=new,
        max_seq_len=max(contexts),
    )


def _caches(batch: StepBatch, dtype: torch.dtype, count: int) -> list[KVCache]:
    blocks = int(batch.block_tables.max()) + 1
    caches: list[KVCache] = resolve_ops("cuda").make_kv_cache(
        blocks, BLOCK_SIZE, SPEC.num_kv_heads, SPEC.head_dim, count, dtype, CUDA
    )
    for cache in caches if dtype is BF16 else []:
        cache.keys.normal_()
        cache.values.normal_()
    return caches


def _attend_runs(batch: StepBatch, caches: list[KVCache]) -> list[Callable[[], object]]:
    attend = resolve_ops("cuda").attend
    qkv = randn(batch.positions.shape[0], (SPEC.num_heads + 2 * SPEC.num_kv_heads) * SPEC.head_dim)
    cos_sin = randn(batch.max_seq_len, SPEC.head_dim, dtype=torch.float32)
    return [partial(attend, qkv, cache, batch, cos_sin, SPEC, None, None) for cache in caches]


def _decode_attention(report: Report) -> None:
    dtypes = [BF16, torch.int8] + ([torch.float8_e4m3fn] if chip_of(CUDA).has_fp8 else [])
    for rows, context in ((1, 1024), (1, 8192), (32, 1024), (32, 8192), (256, 1024)):
        for dtype in dtypes if context == 1024 and rows > 1 else [BF16]:
            batch = make_batch([context] * rows, 1)
            caches = _caches(batch, dtype, 32 if rows == 1 else 4)
            scale = 0 if dtype is BF16 else 4
            moved = 2 * rows * context * SPEC.num_kv_heads * (SPEC.head_dim * dtype.itemsize + scale)
            report.add(
                f"attend decode b{rows} ctx {context} {str(dtype).removeprefix('torch.')}",
                time_each(_attend_runs(batch, caches)),
                moved=moved,
                torch_seconds=_time_sdpa_decode(rows, context) if dtype is BF16 else None,
                target=DECODE_TARGET if rows > 1 else None,
            )
            del caches


def _time_sdpa_decode(rows: int, context: int) -> float:
    """torch on keys and values that lie side by side, which a server's do not."""
    q = randn(rows, SPEC.num_heads, 1, SPEC.head_dim)
    sides = [randn(2, rows, SPEC.num_kv_heads, context, SPEC.head_dim) for _ in range(16 if rows == 1 else 3)]
    runs = [partial(F.scaled_dot_product_attention, q, side[0], side[1], enable_gqa=True) for side in sides]
    return time_each(runs)


def _prefill_attention(report: Report) -> None:
    for rows, tokens in ((1, 2048), (8, 512), (1, 8192)):
        batch = make_batch([tokens] * rows, tokens)
        runs = _attend_runs(batch, _caches(batch, BF16, 1))
        q = randn(rows, SPEC.num_heads, tokens, SPEC.head_dim)
        side = randn(2, rows, SPEC.num_kv_heads, tokens, SPEC.head_dim)
        sdpa = partial(F.scaled_dot_product_attention, q, side[0], side[1], is_causal=True, enable_gqa=True)
        report.add(
            f"attend prefill {rows} x {tokens}",
            time_each(runs),
            flops=2.0 * rows * SPEC.num_heads * SPEC.head_dim * tokens * tokens,
            torch_seconds=time_each([sdpa]),
            target=PREFILL_TARGET if tokens >= 2048 else None,
        )


def random_quantized(scheme: Scheme, n: int, k: int) -> QuantizedWeight:
    """Random codes with groups of 128."""
    if scheme is Scheme.INT4:
        codes = torch.randint(0, 256, (k // 2, n), dtype=torch.uint8, device=CUDA)
        scales = torch.rand(k // 128, n, dtype=torch.float16, device=CUDA)
        return QuantizedWeight(scheme, codes, scales, None, None, n, k, 128)
    codes = torch.randint(0, 100, (n, k), dtype=torch.int8, device=CUDA)
    dtype = torch.int8 if scheme is Scheme.INT8 else torch.float8_e4m3fn
    return QuantizedWeight(scheme, codes.view(dtype), torch.rand(1, n, device=CUDA), None, None, n, k, k)


def _quantized(report: Report) -> None:
    multiply, n, k = load_op("quantized_matmul", "cuda"), HIDDEN, INTERMEDIATE
    dense = [randn(n, k) for _ in range(4)]
    for scheme, bits in ((Scheme.INT4, 4.125), (Scheme.INT8, 8), (Scheme.FP8, 8)):
        if scheme is Scheme.FP8 and not chip_of(CUDA).has_fp8:
            continue
        weights = [random_quantized(scheme, n, k) for _ in range(COPIES)]
        for rows in (1, 16, 64, 2048):
            x = randn(rows, k)
            report.add(
                f"{scheme.value} matmul {rows} x {k} x {n}",
                time_each([partial(multiply, x, weight) for weight in weights]),
                moved=n * k * bits / 8 + 2.0 * rows * (n + k),
                flops=2.0 * rows * n * k,
                torch_seconds=time_each([partial(F.linear, x, weight) for weight in dense]),
            )


def _invariant(report: Report) -> None:
    matmul, weights = load_op("matmul", "cuda"), [randn(HIDDEN, HIDDEN) for _ in range(COPIES)]
    for rows in (1, 32, 2048):
        x = randn(rows, HIDDEN)
        report.add(
            f"invariant matmul {rows} x {HIDDEN} x {HIDDEN}",
            time_each([partial(matmul, x, weight, None, None) for weight in weights]),
            moved=2.0 * HIDDEN * (HIDDEN + 2 * rows),
            flops=2.0 * rows * HIDDEN * HIDDEN,
            torch_seconds=time_each([partial(F.linear, x, weight) for weight in weights]),
        )


def _experts(report: Report) -> None:
    experts, top_k, hidden, inner = 128, 8, 2048, 768
    gate_up, down = randn(experts, 2 * inner, hidden), randn(experts, hidden, inner)
    for tokens in (1, 32, 2048):
        x, logits = randn(tokens, hidden), randn(tokens, experts)
        weights, ids = load_op("moe_route", "cuda")(logits, top_k, True)
        used = ids.unique().numel()
        report.add(
            f"experts {tokens} tokens, {used} of {experts} used",
            time_each([partial(load_op("moe_experts", "cuda"), x, gate_up, down, weights, ids)]),
            moved=6.0 * used * inner * hidden,
            flops=6.0 * tokens * top_k * inner * hidden,
        )


def _adapters(report: Report) -> None:
    for tokens in (32, 2048):
        adapters = Adapters(randn(8, 16, HIDDEN), randn(8, HIDDEN, 16), torch.ones(8, device=CUDA))
        groups = group_rows(torch.randint(0, 9, (tokens,), device=CUDA), 8, 16)
        x, y = randn(tokens, HIDDEN), randn(tokens, HIDDEN)
        moved = 2.0 * (tokens * HIDDEN * 3 + 2 * 8 * 16 * HIDDEN)
        report.add(
            f"lora rank 16, {tokens} tokens, 8 adapters",
            time_each([partial(load_op("lora_add_", "cuda"), y, x, adapters, groups)]),
            moved=moved,
        )


def draw_rows(rows: int, *, truncates: bool) -> DrawRows:
    """Rows at temperature 0.8, cut to top_p 0.95 and top_k 50 where asked for."""
    ones = torch.ones(rows, device=CUDA)
    return DrawRows(
        temperature=ones * 0.8,
        top_k=(ones * (50 if truncates else 0)).int(),
        top_p=ones * (0.95 if truncates else 1.0),
        log_min_p=ones * float("-inf"),
        keys=torch.randint(0, 1 << 31, (rows, 2), device=CUDA),
        truncates=truncates,
    )


def _sampling(report: Report) -> None:
    draw = load_op("draw_tokens", "cuda")
    for rows in (1, 32, 256):
        logits = [randn(rows, VOCAB, dtype=torch.float32) * 3 for _ in range(4 if rows < 256 else 2)]
        for truncates in (False, True):
            how = draw_rows(rows, truncates=truncates)
            name = f"draw {rows} of {VOCAB}" + (", top_k and top_p" if truncates else "")
            report.add(name, time_each([partial(draw, one, how) for one in logits]), moved=4.0 * rows * VOCAB)
