"""What is decided before anything big is allocated: device, types, implementation, context length."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kernels import KVLayer, Ops, choose_implementation, resolve_ops
from engine.kernels.chip import chip_of
from engine.models.config import ModelConfig, load_model_config
from engine.models.shard import Shard, make_shard
from engine.step import RunnerInfo

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
KV_DTYPES |= {"fp8_e4m3": torch.float8_e4m3fn}  # vLLM's other name of it


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What was decided before anything big is allocated."""

    config: EngineConfig
    model: ModelConfig
    shard: Shard  # what this rank has of it
    max_model_len: int
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    ops: Ops

    @property
    def block_bytes(self) -> int:
        """Bytes of a KV block over all layers."""
        model, block_size = self.model, self.config.block_size
        return self.ops.kv_block_bytes(
            block_size, self.shard.kv_heads.size, model.head_dim, model.num_hidden_layers, self.kv_dtype
        )

    @property
    def is_gpu(self) -> bool:
        """Whether the model runs on one."""
        return self.device.type == "cuda"

    @property
    def is_batch_invariant(self) -> bool:
        """Whether a row's bits must not depend on the rows beside it."""
        return self.ops.implementation != "cuda"

    @property
    def sampling_implementation(self) -> str:
        """The sampling ops that go with the others."""
        return "cuda" if self.ops.implementation.startswith("cuda") else self.ops.implementation

    def make_kv_cache(self, num_blocks: int) -> list[KVLayer]:
        """The layers' caches of this many blocks, made by the implementation that will read them."""
        return self.ops.make_kv_cache(
            num_blocks,
            self.config.block_size,
            self.shard.kv_heads.size,
            self.model.head_dim,
            self.model.num_hidden_layers,
            self.kv_dtype,
            self.device,
        )


def make_plan(
    config: EngineConfig,
    weight_dtype: torch.dtype,
    implementation: str | None,
    rank: int = 0,
    *,
    has_packed_weights: bool = False,
) -> LoadPlan:
    """Settle device, type, implementation and context length for one rank. Raises ConfigError."""
    model = load_model_config(config.model_path)
    device = choose_device(config.device, rank, config.tensor_parallel_size)
    dtype = choose_dtype(config.dtype, device, weight_dtype)
    chosen = implementation or choose_implementation(device.type, is_batch_invariant=config.batch_invariant)
    return LoadPlan(
        config=config,
        model=model,
        shard=make_shard(model, rank, config.tensor_parallel_size),
        max_model_len=choose_max_model_len(config.max_model_len, model),
        device=device,
        dtype=dtype,
        kv_dtype=choose_kv_dtype(config.kv_cache_dtype, dtype, device, chosen, has_packed_weights=has_packed_weights),
        ops=resolve_ops(chosen),
    )


def choose_kv_dtype(
    name: str, dtype: torch.dtype, device: torch.device, implementation: str, *, has_packed_weights: bool = False
) -> torch.dtype:
    """The configured type of the KV cache; "auto" is the activations' own, but beside packed weights on a CPU bfloat16:
    float32 would be read half as fast, and be more exact than the weights.
    """
    if name == "auto":
        return torch.bfloat16 if has_packed_weights and implementation == "cpu" else dtype
    chosen = KV_DTYPES.get(name)
    if chosen is None:
        raise ConfigError(f"kv_cache_dtype must be auto, {', '.join(KV_DTYPES)}, not {name!r}")
    if chosen is torch.float32 and device.type == "cuda" and dtype is not torch.float32:
        raise ConfigError("kv_cache_dtype float32 is for a CPU: set it to auto, bfloat16, int8 or fp8")
    if chosen is torch.float8_e4m3fn and implementation == "cpu":
        raise ConfigError(f"kv_cache_dtype {name} needs a GPU: set it to auto, float32, bfloat16 or int8")
    if chosen is torch.float8_e4m3fn and device.type == "cuda" and not chip_of(device).has_fp8:
        raise ConfigError(f"kv_cache_dtype {name} needs a GPU of compute capability 8.9 or higher: set it to int8")
    return chosen


def choose_device(name: str, rank: int = 0, size: int = 1) -> torch.device:
    """The configured device, for each of `size` ranks its own GPU; "auto" is the GPU where there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu or cuda, not {name!r}")
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise ConfigError("device is cuda, but torch finds no usable GPU: set device to cpu or auto")
    if not has_gpu or name == "cpu":
        return torch.device("cpu")
    if size == 1:
        return torch.device("cuda")
    if size > torch.cuda.device_count():
        raise ConfigError(
            f"tensor_parallel_size {size} needs as many GPUs, and torch finds {torch.cuda.device_count()}: "
            "set it to at most that many"
        )
    return torch.device("cuda", rank)


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
        context_cost=plan.model.context_cost,
    )
