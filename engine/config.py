"""The engine's whole configuration, finished and frozen. Whoever starts an engine builds one of these; no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Drafts by prompt lookup: of which length, after how many equal tokens. See `engine.speculation`."""

    num_speculative_tokens: int  # most draft tokens of a request in a step
    prompt_lookup_max: int = 5  # tokens that a match is looked for with, at most
    prompt_lookup_min: int = 2
    disable_by_batch_size: int | None = None  # no drafts beside more rows than these; None: as the cost says
    adaptive: bool = True  # False: drafts as long as they may be, whether they pay or not


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What an engine needs to know before it starts. What it finds out (block count, dtype) lives in `RunnerInfo`.

    Sizes are in bytes, lengths in tokens. ``None`` means "derive it": the model's own context for `max_model_len`,
    a share of free memory for `kv_cache_memory_bytes`.
    """

    model_path: Path  # a baked model folder
    socket_path: Path  # unix socket that the engine binds
    served_model_name: str = "model"
    device: str = "auto"  # auto, cpu, cuda
    tensor_parallel_size: int = 1  # processes that share the model, on a GPU each where there are any
    dtype: str = "auto"  # auto, float32, bfloat16, float16
    kv_cache_dtype: str = "auto"  # see `choose_kv_dtype`; float32, bfloat16, int8, fp8 (on a GPU)
    batch_invariant: bool = False  # same bits alone and in a crowd on a GPU too, at the price of speed
    enforce_eager: bool = False  # no CUDA graphs
    max_model_len: int | None = None
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None  # on each rank
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    scheduling_policy: str = "fcfs"  # fcfs, priority
    fair_step_tokens: int = 0  # of a step that a crowd may take beside a quieter tenant; 0 = any number
    max_step_ms: int = 0  # that a step with prompt tokens may take while a stream waits for it; 0 = the token budget's
    async_scheduling: bool = False  # plan a step while the one before it is computed
    max_num_queued_reqs: int = 1024  # that wait for a place in the running batch; more are refused
    max_num_queued_tokens: int = 262144  # of their prompts; a prompt that waits alone may be longer
    seed: int = 0
    speculation: SpeculationConfig | None = None  # None = off
    num_threads: int | None = None
    log_level: str = "info"
    log_stats_interval_s: float = 10.0  # between two lines of statistics; 0 = none
    engine_timeout_s: float = 0.0  # after which a busy loop without a beat counts as hanging; 0 = never
    journal_path: Path | None = None  # file that tells others, and the next engine, what this one is at
    counts_path: Path | None = None  # file that carries the metrics' counts over to the next engine process
    show_hidden_metrics: bool = False  # also under the names that they had in older vLLM
    custom_histogram_buckets: dict[str, tuple[float, ...]] | None = None  # by names of `engine.metrics.HISTOGRAMS`
    extra_eos_token_ids: tuple[int, ...] = field(default=())  # beside those of the baked generation_config.json

    def __post_init__(self) -> None:
        check_async_scheduling(self.async_scheduling, self.speculation is not None, self.tensor_parallel_size)


def check_async_scheduling(is_async: bool, speculates: bool, tensor_parallel_size: int) -> None:
    """Raises ConfigError where steps cannot be planned ahead at all."""
    if is_async and speculates:
        raise ConfigError(
            "async_scheduling cannot be combined with speculation, whose drafts continue tokens that are known"
        )
    if is_async and tensor_parallel_size > 1:
        raise ConfigError(f"async_scheduling needs tensor_parallel_size 1, but it is {tensor_parallel_size}")
