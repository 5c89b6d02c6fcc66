"""Times steps of whole models: real shapes, random weights, captured decode steps and eager prefill."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.kernels import load_op, resolve_ops
from engine.kernels.batch import StepBatch
from engine.layers.build import Build
from engine.models.config import parse_model_config
from engine.models.decoder import DecoderForCausalLM
from engine.models.loader import make_model
from engine.runner.cuda_graphs import CudaGraphBackend, DecodeGraphs, GraphLimits
from engine.runner.inputs import StepArrays
from engine.runner.staging import Staging, staging_capacity
from tests.gpu.kernels import BLOCK_SIZE, CUDA, draw_rows, make_batch
from tests.gpu.report import Report
from tests.gpu.timing import time_launches

CONTEXT, PREFILL = 1024, 2048
BATCHES = (1, 32, 256)
TARGETS = {1: 0.85, 32: 0.85, 256: None}
MAX_SAMPLING_SHARE = 0.05
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    **{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5},
    **{"max_position_embeddings": 8192, "rope_theta": 500000.0, "tie_word_embeddings": False},
}
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    **{"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "vocab_size": 152064},
    **{"num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": 128, "rms_norm_eps": 1e-6},
    **{"max_position_embeddings": 8192, "rope_theta": 1000000.0, "tie_word_embeddings": False},
}
MODELS = {"Llama-3.1-8B": LLAMA, "Qwen2.5-7B": QWEN}


class RandomWeights:
    """Stands in for a baked model's tensors."""

    def __init__(self, *, has_qkv_bias: bool) -> None:
        self._has_qkv_bias = has_qkv_bias

    def get(self, name: str, *shape: int) -> Tensor:
        """Small random values; ones for norms."""
        if len(shape) == 1 and "norm" in name:
            return torch.ones(shape, dtype=torch.bfloat16, device=CUDA)
        return torch.empty(shape or (1,), dtype=torch.bfloat16, device=CUDA).normal_(std=0.02)

    vector = get

    def find(self, name: str, *shape: int) -> Tensor | None:
        """A tensor that a model may lack."""
        return self.get(name, *shape) if name in self else None

    def __contains__(self, name: str) -> bool:
        return not name.endswith(".bias") or (self._has_qkv_bias and name.endswith("qkv_proj.bias"))


@dataclass(frozen=True, slots=True)
class Floor:
    """What a model's steps need at least of the card."""

    linear_parameters: int
    head_parameters: int
    kv_token_bytes: int
    attention_flops: float  # of one pair of tokens

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Floor:
        """From a config.json."""
        hidden, dim = raw["hidden_size"], raw["head_dim"]
        heads, kv_heads, layers = raw["num_attention_heads"], raw["num_key_value_heads"], raw["num_hidden_layers"]
        layer = hidden * (heads + 2 * kv_heads) * dim + heads * dim * hidden + 3 * hidden * raw["intermediate_size"]
        return cls(layers * layer, hidden * raw["vocab_size"], layers * 4 * kv_heads * dim, 4.0 * layers * heads * dim)

    def decode_s(self, report: Report, rows: int) -> float:
        """Weights read or multiplied, then the cache read."""
        parameters = self.linear_parameters + self.head_parameters
        ceilings = report.ceilings
        linear = max(2 * parameters / ceilings.copy_bytes, 2 * parameters * rows / ceilings.matmul_flops)
        return linear + rows * CONTEXT * self.kv_token_bytes / ceilings.copy_bytes

    def prefill_s(self, report: Report) -> float:
        """Every layer's products, and half of the pairs of tokens."""
        flops = 2.0 * self.linear_parameters * PREFILL + self.attention_flops * PREFILL * PREFILL / 2
        return flops / report.ceilings.matmul_flops


def time_models(report: Report) -> None:
    """Both models, one after the other."""
    for name, raw in MODELS.items():
        try:
            with torch.inference_mode():
                _time_model(report, name, raw)
        except Exception as error:  # the other model's figures are still wanted
            report.fail(name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        gc.collect()
        torch.cuda.empty_cache()


def _time_model(report: Report, name: str, raw: dict[str, Any]) -> None:
    ops, floor = resolve_ops("cuda"), Floor.of(raw)
    weights = RandomWeights(has_qkv_bias="Qwen" in name)
    config = parse_model_config(raw)
    model = make_model(config, Build(ops, weights, torch.bfloat16, CUDA), 4096)
    blocks = max(BATCHES) * (CONTEXT // BLOCK_SIZE) + 1
    kv_cache = ops.make_kv_cache(
        blocks, BLOCK_SIZE, config.num_key_value_heads, config.head_dim, config.num_hidden_layers, torch.bfloat16, CUDA
    )
    for rows in BATCHES:
        _time_decode(report, name, model, kv_cache, rows, floor)
    batch = make_batch([PREFILL], PREFILL)
    ids = torch.randint(0, config.vocab_size, (PREFILL,), device=CUDA)
    last = torch.tensor([PREFILL - 1], device=CUDA)
    seconds = time_launches(lambda: model.compute_logits(model.forward(ids, batch, kv_cache), last))
    report.add_step(f"{name} prefill {PREFILL}", seconds, PREFILL, floor.prefill_s(report), None)


def _time_decode(
    report: Report, name: str, model: DecoderForCausalLM, kv_cache: list[Any], rows: int, floor: Floor
) -> None:
    def run(token_ids: Tensor, batch: StepBatch) -> Tensor:
        x = model.forward(token_ids, batch, kv_cache)
        return model.compute_logits(x, torch.arange(x.shape[0], device=CUDA))

    width = CONTEXT // BLOCK_SIZE
    scratch = max(BATCHES) * width
    limits = GraphLimits(rows, width, BLOCK_SIZE, CONTEXT, scratch)
    graphs = DecodeGraphs(run, limits, Staging(staging_capacity(rows, rows, width), CUDA), CUDA)
    graphs.sizes = [rows]  # the others are of no interest here
    graphs.capture(CudaGraphBackend())
    arrays = _decode_arrays(rows, width)
    draw, how = load_op("draw_tokens", "cuda"), draw_rows(rows, truncates=False)
    step = time_launches(lambda: draw(graphs.replay(arrays), how))
    forward = time_launches(lambda: graphs.replay(arrays))
    target = TARGETS[rows]
    report.add_step(f"{name} decode b{rows} ctx {CONTEXT}", step, rows, floor.decode_s(report, rows), target)
    overhead = max(0.0, step - forward)
    report.add_share(f"{name} sampling b{rows}", overhead, overhead / step, MAX_SAMPLING_SHARE)


def _decode_arrays(rows: int, width: int) -> StepArrays:
    tables = np.random.default_rng(0).permutation(rows * width).reshape(rows, width).astype(np.int32)
    return StepArrays(
        token_ids=np.arange(rows, dtype=np.int32),
        positions=np.full(rows, CONTEXT - 1, dtype=np.int32),
        slots=tables[:, -1] * BLOCK_SIZE + BLOCK_SIZE - 1,
        query_start_loc=np.arange(rows + 1, dtype=np.int32),
        seq_lens=np.full(rows, CONTEXT, dtype=np.int32),
        block_tables=tables,
        sample_rows=np.arange(rows, dtype=np.int64),
    )
