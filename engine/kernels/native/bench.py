"""Measure the CPU kernels next to what the machine can do: ``python -m engine.kernels.native.bench``.

Weights are many copies of a layer, more than the caches hold, and random. Times are the best of many, because a
machine that others use is only ever slower than it could be; where it is busy throughout, floors and figures are both
too low. Figures of the whole stack leave out the engine around it.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.attend.cpu import LayerCache, attention_struct, batch_struct, kv_block_bytes, make_kv_cache
from engine.kernels.batch import AttentionSpec, StepBatch
from engine.kernels.native.library import Epilogue, Format, Layer, Library, load_library
from engine.kernels.native.packing import PackedWeight, allocate, pack

CPU = torch.device("cpu")
KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
FLOOR_BYTES = 256 << 20
CACHED_BYTES = 192 << 20  # weights of a linear measurement, together: more than a cache
OUTLIER_CHANNELS, OUTLIER_FACTOR = slice(None, None, 256), 16  # of a model's activations: int4_a8 treats them apart
LINEARS = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536), "head": (49152, 576)}


@dataclass(frozen=True, slots=True)
class Floors:
    """Rates of the machine with this build and team."""

    read: float  # bytes a second
    fma: float  # operations a second
    int16: float  # int8 weights times int16 activations
    int8: float  # int4 weights times int8 activations

    def peak(self, format: Format) -> float:
        """Operations a second at best with what the format is multiplied with."""
        if format <= Format.FLOAT16:
            return self.fma
        return self.int8 if format == Format.INT4_A8 else self.int16


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder's sizes; the default is SmolLM2-135M's."""

    layers: int = 30
    hidden: int = 576
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    inner: int = 1536
    vocab: int = 49152

    @property
    def spec(self) -> AttentionSpec:
        """Full attention."""
        return AttentionSpec(self.heads, self.kv_heads, self.head_dim, self.head_dim**-0.5, None, 1e-5)


def best_time(function: Callable[[], object], budget_s: float) -> float:
    """Seconds of the fastest call within the budget, at least three calls."""
    function()
    best, calls, end = float("inf"), 0, time.perf_counter() + budget_s
    while calls < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
        calls += 1
    return best


def measure_floors(library: Library) -> Floors:
    """Print and return them."""
    data = allocate(FLOOR_BYTES).fill_(1)  # written: untouched pages may all be one
    floors = Floors(*library.measure(data.data_ptr(), FLOOR_BYTES // 4, 20))
    print(
        f"build {library.isa}, {library.num_threads} threads: read {floors.read / 1e9:.1f} GB/s, "
        f"fma {floors.fma / 1e9:.0f} GFLOP/s, int8 x int16 {floors.int16 / 1e9:.0f} GOP/s, "
        f"int4 x int8 {floors.int8 / 1e9:.0f} GOP/s"
    )
    return floors


def call_linear(
    library: Library, weight: PackedWeight, x: Tensor, y: Tensor, epilogue: Epilogue, norm: Tensor | None = None
) -> None:
    """One product."""
    norm_address = None if norm is None else norm.data_ptr()
    sizes = (weight.address, x.shape[0], y.data_ptr(), y.shape[1])
    library.linear(x.data_ptr(), x.shape[1], norm_address, 1e-5, *sizes, epilogue)


def bench_linear(library: Library, floors: Floors, format: Format, rows: list[int], budget_s: float) -> None:
    """A line for each matrix: GB/s of weights and GOP/s, and their share of the floor."""
    for name, (n, k) in LINEARS.items():
        count = 1 + min(64, CACHED_BYTES // (n * k))
        copies = [pack(torch.randn(n, k) * 0.05, format, is_gate_up=name == "gate_up") for _ in range(count)]
        cells = [f"M={m}: " + linear_cell(library, floors, copies, m, budget_s) for m in rows]
        print(f"  {format.name:8} {name:8} " + " | ".join(cells), flush=True)


def linear_cell(library: Library, floors: Floors, copies: list[PackedWeight], m: int, budget_s: float) -> str:
    """One figure: m rows times each copy in turn."""
    weight = copies[0]
    x, y = torch.randn(m, weight.k), torch.empty(m, weight.num_outputs)
    x[:, OUTLIER_CHANNELS] *= OUTLIER_FACTOR
    epilogue = Epilogue.SWIGLU if weight.is_gate_up else Epilogue.STORE

    def run() -> None:
        for copy in copies:
            call_linear(library, copy, x, y, epilogue)

    seconds = best_time(run, budget_s) / len(copies)
    moved, done = weight.data.numel() / seconds, 2 * m * weight.n * weight.k / seconds
    return f"{rate(moved, floors.read, 'GB/s')} {rate(done, floors.peak(weight.format), 'GOP/s')}"


def rate(found: float, floor: float, unit: str) -> str:
    """A rate in billions and its share of the floor."""
    return f"{found / 1e9:5.1f} {unit} {100 * found / floor:3.0f}%"


class Stack:
    """Random weights of a whole model, its caches, and steps over them."""

    def __init__(self, library: Library, shape: ModelShape, format: Format, kv_dtype: torch.dtype, blocks: int) -> None:
        self.library, self.shape, self.format = library, shape, format
        head_format = Format.INT8 if format in (Format.INT4, Format.INT4_A8) else format
        self.head = pack(torch.randn(shape.vocab, shape.hidden) * 0.05, head_format)
        self.norm = torch.ones(shape.hidden)
        self.norm[OUTLIER_CHANNELS] = OUTLIER_FACTOR
        half = shape.head_dim // 2
        self.cos_sin = torch.cat([torch.ones(8192, half), torch.zeros(8192, half)], dim=1)
        self.caches = make_kv_cache(blocks, 16, shape.kv_heads, shape.head_dim, shape.layers, kv_dtype, CPU)
        self.weights = [self._layer_weights() for _ in range(shape.layers)]
        structs = [self._layer(w, c) for w, c in zip(self.weights, self.caches, strict=True)]
        self.layers = (Layer * shape.layers)(*structs)
        self.num_weights = sum(w.n * w.k for layer in self.weights for w in layer)
        self.weight_bytes = sum(w.data.numel() for layer in self.weights for w in layer) + self.head.data.numel()
        self.kv_bytes = kv_block_bytes(16, shape.kv_heads, shape.head_dim, shape.layers, kv_dtype) / 16  # of a token

    def _layer_weights(self) -> list[PackedWeight]:
        s = self.shape
        query = s.heads * s.head_dim
        sizes = [(query + 2 * s.kv_heads * s.head_dim, s.hidden), (s.hidden, query), (2 * s.inner, s.hidden)]
        sizes.append((s.hidden, s.inner))
        return [pack(torch.randn(n, k) * 0.05, self.format, is_gate_up=i == 2) for i, (n, k) in enumerate(sizes)]

    def _layer(self, weights: list[PackedWeight], cache: LayerCache) -> Layer:
        norm = self.norm.data_ptr()
        attention = attention_struct(self.shape.spec, self.cos_sin)
        return Layer(norm, norm, None, None, *(w.struct for w in weights), cache.struct, attention)

    def step(self, batch: StepBatch, x: Tensor, last: Tensor, logits: Tensor) -> None:
        """Stack and head: what a step spends in kernels."""
        struct = batch_struct(batch)
        layers, shape = ctypes.addressof(self.layers), self.shape
        self.library.decode(x.data_ptr(), shape.hidden, layers, shape.layers, ctypes.addressof(struct), 1e-5)
        rows = x[last]
        call_linear(self.library, self.head, rows, logits, Epilogue.STORE, self.norm)


def make_batch(rows: int, context: int, new: int) -> StepBatch:
    """`rows` requests of `context` tokens, the last `new` of them in this step, over shuffled blocks of 16."""
    width = -(-context // 16)
    tables = torch.randperm(rows * width).view(rows, width)
    positions = torch.arange(context - new, context).repeat(rows)
    owners = torch.arange(rows).repeat_interleave(new)
    return StepBatch(
        positions=positions.int(),
        slot_mapping=(tables[owners, positions // 16] * 16 + positions % 16).int(),
        query_start_loc=torch.arange(0, rows * new + 1, new).int(),
        seq_lens=torch.full((rows,), context).int(),
        block_tables=tables.int().contiguous(),
        block_size=16,
        max_query_len=new,
        max_seq_len=context,
    )


def bench_stack(library: Library, floors: Floors, format: Format, kv_dtype: torch.dtype, budget_s: float) -> None:
    """Decode at context 256 by batch, prefill by length."""
    stack = Stack(library, ModelShape(), format, kv_dtype, blocks=1024)
    cells = [decode_cell(stack, floors, rows, 256, budget_s) for rows in (1, 8, 32)]
    cells += [prefill_cell(stack, floors, tokens, budget_s) for tokens in (128, 512, 2048)]
    kv = str(kv_dtype).removeprefix("torch.")
    print(f"  {format.name:8} kv {kv:8} {stack.weight_bytes / 1e6:.0f} MB  " + " | ".join(cells), flush=True)


def decode_cell(stack: Stack, floors: Floors, rows: int, context: int, budget_s: float) -> str:
    """One token of each of `rows` requests; bytes are those of weights and context."""
    seconds = time_step(stack, make_batch(rows, context, 1), torch.arange(rows), budget_s)
    moved = (stack.weight_bytes + rows * context * stack.kv_bytes) / seconds
    return f"d{rows} {seconds * 1e3:6.2f} ms {rows / seconds:6.0f} tok/s {rate(moved, floors.read, 'GB/s')}"


def prefill_cell(stack: Stack, floors: Floors, tokens: int, budget_s: float) -> str:
    """A whole prompt; operations are those of the layers and of causal attention."""
    seconds = time_step(stack, make_batch(1, tokens, tokens), torch.tensor([tokens - 1]), budget_s)
    s = stack.shape
    done = 2 * stack.num_weights * tokens + 2 * s.layers * s.heads * s.head_dim * tokens * tokens
    share = rate(done / seconds, floors.peak(stack.format), "GOP/s")
    return f"p{tokens} {seconds * 1e3:6.1f} ms {tokens / seconds:6.0f} tok/s {share}"


def time_step(stack: Stack, batch: StepBatch, last: Tensor, budget_s: float) -> float:
    """Seconds of the fastest step."""
    x, logits = torch.randn(batch.positions.numel(), stack.shape.hidden), torch.empty(last.numel(), stack.shape.vocab)
    return best_time(lambda: stack.step(batch, x.normal_(), last, logits), budget_s)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.kernels.native.bench", description=__doc__)
    parser.add_argument("--isa", help="a build other than the best for this CPU")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--format", action="append", choices=[f.name.lower() for f in Format])
    parser.add_argument(
        "--rows", type=int, nargs="*", default=[1, 8, 32, 128], help="rows of the linear layers; none: skip"
    )
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each figure")
    parser.add_argument("--kv-cache-dtype", choices=KV_DTYPES, help="default: bfloat16, beside float32 weights float32")
    parser.add_argument("--no-stack", action="store_true")
    options = parser.parse_args()
    library = load_library(options.isa)
    library.set_num_threads(options.threads)
    formats = [Format[name.upper()] for name in options.format] if options.format else list(Format)
    floors = measure_floors(library)
    with torch.inference_mode():
        for format in formats if options.rows else ():
            bench_linear(library, floors, format, options.rows, options.budget)
        for format in () if options.no_stack else formats:
            own = "float32" if format == Format.FLOAT32 else "bfloat16"
            bench_stack(library, floors, format, KV_DTYPES[options.kv_cache_dtype or own], options.budget)


if __name__ == "__main__":
    main()
