"""One engine program of a box: the rendered settings become an EngineConfig, and the engine serves until SIGTERM."""

from __future__ import annotations

from appliance.derived_settings import default_token_budget, names_by_model
from appliance.settings import Settings
from engine.config import EngineConfig


def make_engine_config(settings: Settings, index: int) -> EngineConfig:
    """The configuration of the engine of model number `index`; the settings must be complete."""
    assert settings.run_dir is not None
    return EngineConfig(
        model_path=settings.model[index],
        socket_path=settings.run_dir / f"engine-{index}.sock",
        served_model_name=names_by_model(settings, settings.model)[index][0],
        device=settings.device,
        dtype=settings.dtype,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens or default_token_budget(settings.device),
        block_size=settings.block_size,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        kv_cache_memory_bytes=settings.kv_cache_memory,
        num_gpu_blocks_override=settings.num_gpu_blocks_override,
        enable_prefix_caching=settings.enable_prefix_caching,
        enable_chunked_prefill=settings.enable_chunked_prefill,
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        scheduling_policy=settings.scheduling_policy,
        seed=settings.seed,
        num_threads=settings.num_threads,
        log_level=settings.log_level,
    )


def run_engine(settings: Settings, index: int) -> int:
    """Serve until SIGTERM; returns the exit status. Raises engine.errors.ConfigError."""
    from engine.server import serve  # torch and all that is only for this process

    return serve(make_engine_config(settings, index))
