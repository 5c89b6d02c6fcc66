"""From a configuration to a runner: device and type, weights, KV cache, a warm-up; progress is told on the way."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kernels import Ops, choose_implementation, resolve_ops, set_num_threads
from engine.layers.build import Build
from engine.messages import SamplingParams
from engine.models.config import ModelConfig, load_model_config
from engine.models.loader import MappedWeights, make_model
from engine.runner.kv_cache import count_blocks, make_kv_cache
from engine.runner.model_runner import ModelRunner
from engine.step import Progress, RunnerInfo, StepInput, StepRow

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LOADED_PERCENT, ALLOCATED_PERCENT = 80.0, 90.0  # where the phases end


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What was decided before anything big is allocated."""

    config: EngineConfig
    model: ModelConfig
    max_model_len: int
    device: torch.device
    dtype: torch.dtype
    ops: Ops

    @property
    def block_bytes(self) -> int:
        """Bytes of a KV block over all layers."""
        model = self.model
        return self.ops.kv_block_bytes(
            self.config.block_size, model.num_key_value_heads, model.head_dim, model.num_hidden_layers, self.dtype
        )


def load_runner(config: EngineConfig, progress: Progress, implementation: str | None) -> ModelRunner:
    """See `engine.runner.make_runner`."""
    progress("loading weights", 0.0)
    weights = MappedWeights(
        config.model_path / "model.safetensors", lambda share: progress("loading weights", LOADED_PERCENT * share)
    )
    plan = make_plan(config, weights.dtype, implementation)
    set_num_threads(plan.ops.implementation, config.num_threads)
    # Fails before the weights are touched where the cache would be too small.
    num_blocks = count_blocks(config, plan.block_bytes, plan.max_model_len, plan.device)
    with torch.inference_mode():
        model = make_model(plan.model, Build(plan.ops, weights, plan.dtype, plan.device), plan.max_model_len)
    progress("allocating kv cache", LOADED_PERCENT)
    kv_cache = make_kv_cache(plan.ops, plan.model, num_blocks, config.block_size, plan.dtype, plan.device)
    runner = ModelRunner(model, kv_cache, make_info(plan, num_blocks), plan.device)
    progress("warming up", ALLOCATED_PERCENT)
    warm_up(runner)
    _log(plan, runner.info)
    return runner


def make_plan(config: EngineConfig, weight_dtype: torch.dtype, implementation: str | None) -> LoadPlan:
    """Settle device, type, implementation and context length. Raises ConfigError."""
    model = load_model_config(config.model_path)
    device = choose_device(config.device)
    return LoadPlan(
        config=config,
        model=model,
        max_model_len=choose_max_model_len(config.max_model_len, model),
        device=device,
        dtype=choose_dtype(config.dtype, device, weight_dtype),
        ops=resolve_ops(implementation or choose_implementation(device.type)),
    )


def choose_device(name: str) -> torch.device:
    """The configured device; "auto" is the GPU where there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu or cuda, not {name!r}")
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise ConfigError("device is cuda, but torch finds no usable GPU: set device to cpu or auto")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")


def choose_dtype(name: str, device: torch.device, weight_dtype: torch.dtype) -> torch.dtype:
    """The configured type of activations and KV cache; "auto" is the weights' own on a GPU, float32 on a CPU."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else weight_dtype
    if name not in DTYPES:
        raise ConfigError(f"dtype must be auto, {', '.join(DTYPES)}, not {name!r}")
    return DTYPES[name]


def choose_max_model_len(configured: int | None, model: ModelConfig) -> int:
    """The longest context to serve: the configured one, else the model's own."""
    if configured is None:
        return model.max_position_embeddings
    if not 1 <= configured <= model.max_len:
        raise ConfigError(f"max_model_len {configured} is out of range: the model's context is {model.max_len} tokens")
    return configured


def make_info(plan: LoadPlan, num_blocks: int) -> RunnerInfo:
    """What the scheduler and the callers are told."""
    return RunnerInfo(
        num_blocks=num_blocks,
        block_size=plan.config.block_size,
        max_model_len=plan.max_model_len,
        vocab_size=plan.model.vocab_size,
        eos_token_ids=plan.model.eos_token_ids | frozenset(plan.config.extra_eos_token_ids),
        dtype=str(plan.dtype).removeprefix("torch."),
        device=str(plan.device),
    )


def warm_up(runner: ModelRunner) -> None:
    """One token through everything, so that the first request doesn't pay for lazy set-up. Writes KV slot 0."""
    sampling = SamplingParams(max_tokens=1, seed=0, temperature=1.0)
    row = StepRow("warm-up", [0], [], 0, 1, [0], sampling, samples=True)
    runner.execute(StepInput([row]))


def _log(plan: LoadPlan, info: RunnerInfo) -> None:
    logger.info(
        "model loaded architecture=%s ops=%s device=%s dtype=%s max_model_len=%d num_blocks=%d kv_cache_bytes=%d",
        plan.model.architecture,
        plan.ops.implementation,
        info.device,
        info.dtype,
        info.max_model_len,
        info.num_blocks,
        info.num_blocks * plan.block_bytes,
    )
