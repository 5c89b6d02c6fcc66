"""The catalogue of ops: name → implementations. An op is one callable signature with several implementations.

``engine/kernels/<op>/reference.py`` is plain torch and the truth; ``cpu.py`` binds the C++ library
(`engine.kernels.native`); ``kernel.py`` is Triton, the implementation "cuda" ("cuda-invariant" is the same with tiles
and splits that are fixed whatever the batch). `resolve_ops` picks one implementation of every op, once, when the
model is built; model code never asks again. Each implementation of an op is a function of the op's own name in its
module, listed in `CATALOGUE`; ``shapes.py`` beside it yields the shapes (`SHAPES`) that the sweep test feeds to all.
`PARTS` lists, in the same way, what those ops and the runner are composed of, and what only some models need.

Conventions: T = tokens of the step, R = its rows (requests), K and N = input and output channels, H and KV = query and
key/value heads, D = head size, I = intermediate size. Activations are contiguous ``[T, …]`` in the model's dtype
(float32 on a CPU unless asked otherwise). **A row's result never depends on the rows beside it, nor on how many there
are**: chunking, batching and prefix caching must not change a bit. (On a GPU that is the promise of "cuda-invariant";
"cuda" lets cuBLAS and the split of a context depend on the batch, and keeps it to rounding.)

``prepare_linear(weight[N, K], bias[N] | None, dtype, device) -> Weight``
    What the implementation multiplies with; opaque to everybody else. `weight` is the mapped tensor in the file's own
    dtype, or the `PackedTensor` that bake made of it; `dtype` is the activations'. May keep a view of the mapping; must
    not write to it.
``prepare_gate_up(weight[2I, K], bias[2I] | None, dtype, device) -> Weight``
    The same for `norm_linear_swiglu` (gate rows, then up rows), which may interleave them.
``prepare_embedding(weight[V, K], dtype, device) -> Table``
    What `embedding` looks ids up in.
``kv_block_bytes(block_size, num_kv_heads, head_dim, num_layers, dtype) -> int``
    Bytes of one block over all layers.
``make_kv_cache(num_blocks, block_size, num_kv_heads, head_dim, num_layers, dtype, device) -> list[KVLayer]``
    One opaque layer cache per layer, zeroed.

``embedding(token_ids[T] int64, table) -> x[T, K]``
``norm_linear(x[T, K], norm_weight[K] | None, eps, weight) -> [T, N]``
    ``rms_norm(x) @ W^T + bias``, the norm only where norm_weight is given. The head uses it too, on gathered rows.
``norm_linear_swiglu(x[T, K], norm_weight[K] | None, eps, weight) -> [T, I]``
    ``silu(gate) * up`` of ``rms_norm(x) @ W^T + bias``.
``linear_add_(residual[T, N], a[T, K], weight) -> None``
    ``residual += a @ W^T + bias``, in place.
``attend(qkv[T, (H+2KV)*D], kv_layer, batch, cos_sin, spec, q_norm[D] | None, k_norm[D] | None) -> [T, H*D]``
    Per-head RMSNorm of q and k where weights are given, rotary embedding, K and V written to ``batch.slot_mapping``,
    then causal attention of each row over its block table. May overwrite `qkv`. See `engine.kernels.batch` for
    `StepBatch` and `AttentionSpec`. ``cos_sin`` is float32 ``[max_model_len, D]``: D/2 cosines, then D/2 sines;
    dimension j turns with dimension j + D/2 (Hugging Face's half-split order).

Norm weights are contiguous tensors in the model's dtype, on its device. Norms, softmax and sums are float32.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.kernels.batch import AttentionSpec, StepBatch
from engine.kernels.native.library import load_library
from engine.kernels.native.targets import is_built
from engine.kernels.packed import PackedTensor

Weight = Any
Table = Any
KVLayer = Any

logger = logging.getLogger(__name__)


# implementation → the module of an op's folder
FILES = {"reference": "reference", "cpu": "cpu", "cuda": "kernel", "cuda-invariant": "invariant"}


def _modules(folder: str, *implementations: str, **elsewhere: str) -> dict[str, str]:
    """Modules of an op by implementation; "cuda_invariant" names the file where it is another than usual."""
    files = {implementation: FILES[implementation] for implementation in implementations}
    files.update({implementation.replace("_", "-"): file for implementation, file in elsewhere.items()})
    return {implementation: f"engine.kernels.{folder}.{file}" for implementation, file in files.items()}


_ALL = ("reference", "cpu", "cuda", "cuda-invariant")

CATALOGUE: dict[str, dict[str, str]] = {
    # op: {implementation: module}
    "prepare_linear": _modules("linear", *_ALL),
    "prepare_gate_up": _modules("linear", *_ALL),
    "prepare_embedding": _modules("embedding", *_ALL[:3], cuda_invariant="kernel"),
    "kv_block_bytes": _modules("attend", *_ALL),
    "make_kv_cache": _modules("attend", *_ALL),
    "embedding": _modules("embedding", *_ALL[:3], cuda_invariant="kernel"),
    "norm_linear": _modules("linear", *_ALL),
    "norm_linear_swiglu": _modules("linear", *_ALL),
    "linear_add_": _modules("linear", *_ALL),
    "attend": _modules("attend", *_ALL),
}

PARTS: dict[str, dict[str, str]] = {
    # op of its own signature (see its reference): {implementation: module}
    "rms_norm": _modules("norm", "reference", "cuda"),
    "add_rms_norm_": _modules("norm", "reference", "cuda"),
    "silu_mul": _modules("gated", "reference", "cuda"),
    "gelu_mul": _modules("gated", "reference", "cuda"),
    "matmul": _modules("matmul", "reference", "cuda"),
    "quantized_matmul": _modules("quantized", "reference", "cuda"),
    "dequantize": _modules("quantized", "reference", "cuda"),
    "moe_route": _modules("moe", "reference", "cuda"),
    "moe_experts": _modules("moe", "reference", "cuda"),
    "lora_add_": _modules("lora", "reference", "cuda"),
    "norm_linear_argmax": _modules("linear", "reference", "cpu"),
    "draw_tokens": _modules("sample", *_ALL[:3]),
    "apply_penalties_": _modules("sample", *_ALL[:3]),
    "verify_greedy": _modules("sample", "reference", "cuda"),
}

SHAPES: dict[str, str] = {
    # op that computes: the generator of the shapes that a test compares all its implementations over
    "embedding": "engine.kernels.embedding.shapes:embedding_shapes",
    "norm_linear": "engine.kernels.linear.shapes:linear_shapes",
    "norm_linear_swiglu": "engine.kernels.linear.shapes:linear_shapes",
    "linear_add_": "engine.kernels.linear.shapes:linear_shapes",
    "norm_linear_argmax": "engine.kernels.linear.shapes:linear_shapes",
    "attend": "engine.kernels.attend.shapes:attend_shapes",
    "rms_norm": "engine.kernels.norm.shapes:norm_shapes",
    "add_rms_norm_": "engine.kernels.norm.shapes:norm_shapes",
    "silu_mul": "engine.kernels.gated.shapes:gated_shapes",
    "gelu_mul": "engine.kernels.gated.shapes:gated_shapes",
    "matmul": "engine.kernels.matmul.shapes:matmul_shapes",
    "quantized_matmul": "engine.kernels.quantized.shapes:quantized_shapes",
    "dequantize": "engine.kernels.quantized.shapes:quantized_shapes",
    "moe_route": "engine.kernels.moe.shapes:moe_shapes",
    "moe_experts": "engine.kernels.moe.shapes:moe_shapes",
    "lora_add_": "engine.kernels.lora.shapes:lora_shapes",
    "draw_tokens": "engine.kernels.sample.shapes:draw_shapes",
    "apply_penalties_": "engine.kernels.sample.shapes:seen_shapes",
    "verify_greedy": "engine.kernels.sample.shapes:draft_shapes",
}

PREFERENCES = {"cpu": ("cpu", "reference"), "cuda": ("cuda", "reference")}
INVARIANT = {"cpu": ("cpu", "reference"), "cuda": ("cuda-invariant", "reference")}  # those that keep the promise


@dataclass(frozen=True, slots=True)
class Ops:
    """One implementation of every op, as the module docstring describes them."""

    implementation: str
    prepare_linear: Callable[[Tensor | PackedTensor, Tensor | None, torch.dtype, torch.device], Weight]
    prepare_gate_up: Callable[[Tensor | PackedTensor, Tensor | None, torch.dtype, torch.device], Weight]
    prepare_embedding: Callable[[Tensor | PackedTensor, torch.dtype, torch.device], Table]
    kv_block_bytes: Callable[[int, int, int, int, torch.dtype], int]
    make_kv_cache: Callable[[int, int, int, int, int, torch.dtype, torch.device], list[KVLayer]]
    embedding: Callable[[Tensor, Table], Tensor]
    norm_linear: Callable[[Tensor, Tensor | None, float, Weight], Tensor]
    norm_linear_swiglu: Callable[[Tensor, Tensor | None, float, Weight], Tensor]
    linear_add_: Callable[[Tensor, Tensor, Weight], None]
    attend: Callable[[Tensor, KVLayer, StepBatch, Tensor, AttentionSpec, Tensor | None, Tensor | None], Tensor]


def load_op(op: str, implementation: str) -> Callable[..., Any]:
    """The callable of one implementation. Raises ConfigError where the op does not have it."""
    modules = CATALOGUE[op] if op in CATALOGUE else PARTS[op]
    if implementation not in modules:
        raise ConfigError(f"op {op} has no implementation {implementation!r} (it has {', '.join(sorted(modules))})")
    function: Callable[..., Any] = getattr(import_module(modules[implementation]), op)
    return function


def find_op(op: str, implementation: str) -> Callable[..., Any] | None:
    """The same; None where the op does not have it."""
    return load_op(op, implementation) if implementation in (CATALOGUE | PARTS)[op] else None


def make_shapes(op: str) -> list[Any]:
    """Every shape that the op's implementations are compared over."""
    module, name = SHAPES[op].split(":")
    return list(getattr(import_module(module), name)())


def choose_implementation(device_type: str, *, is_batch_invariant: bool = False) -> str:
    """The fastest implementation that has every op on this kind of device."""
    for implementation in (INVARIANT if is_batch_invariant else PREFERENCES)[device_type]:
        if implementation == "cpu" and not is_built():
            logger.warning("cpu kernels not built, using slow reference ops: run python -m engine.kernels.native.build")
            continue
        if implementation.startswith("cuda") and find_spec("triton") is None:
            logger.warning("triton is not installed, using slow reference ops: pip install triton")
            continue
        if all(implementation in modules for modules in CATALOGUE.values()):
            return implementation
    raise ConfigError(f"no implementation has every op on device {device_type}")


def resolve_ops(implementation: str) -> Ops:
    """Every op of one implementation; weights prepared by one cannot be used with another."""
    return Ops(implementation, **{op: load_op(op, implementation) for op in CATALOGUE})


def set_num_threads(implementation: str, threads: int | None) -> None:
    """Threads that the ops of an implementation use; None: one for each core that the process may use."""
    if implementation == "cpu":
        load_library().set_num_threads(threads)
        threads = 1  # torch has only small things left to do, and a second pool of spinning threads would cost more
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
