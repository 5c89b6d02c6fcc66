"""Settings become an EngineConfig, knob for knob."""

from __future__ import annotations

from pathlib import Path

from appliance.engine_process import make_engine_config
from appliance.settings import Settings

DIFFERENT = {
    **{"dtype": "bfloat16", "device": "cpu", "max_model_len": 99, "max_num_seqs": 3, "max_num_batched_tokens": 77},
    **{"block_size": 8, "gpu_memory_utilization": 0.5, "num_gpu_blocks_override": 55, "enable_prefix_caching": False},
    **{"enable_chunked_prefill": False, "long_prefill_token_threshold": 11, "scheduling_policy": "priority"},
    **{"seed": 5, "num_threads": 2, "log_level": "debug", "tensor_parallel_size": 4},
    **{"fair_step_tokens": 7, "max_step_ms": 321},
}


def test_every_knob_arrives() -> None:
    settings = Settings(
        **DIFFERENT,  # type: ignore[arg-type]
        model=(Path("/a"), Path("/b")),
        served_model_name=("x", "y"),
        run_dir=Path("/run/box"),
        kv_cache_memory=1234,
    )
    config = make_engine_config(settings, 1)
    assert {name: getattr(config, name) for name in DIFFERENT} == DIFFERENT
    assert config.model_path == Path("/b")
    assert config.served_model_name == "y"
    assert config.socket_path == Path("/run/box/engine-1.sock")
    assert config.kv_cache_memory_bytes == 1234


def test_what_is_left_open_is_found_out() -> None:
    config = make_engine_config(Settings(model=(Path("/a"),), run_dir=Path("/run/box"), device="cpu"), 0)
    assert config.max_num_batched_tokens == 256
    assert config.kv_cache_memory_bytes is None
    assert config.served_model_name == "a"
