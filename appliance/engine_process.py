"""One engine program of a box: the rendered settings become an EngineConfig, and the engine serves until SIGTERM."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import NoReturn

from appliance.derived_settings import default_token_budget, names_by_model
from appliance.settings import KNOB_BY_NAME, Settings
from appliance.speculative_config import lookup_lengths
from appliance.supervisor.run_dir import journal_path
from engine.config import EngineConfig, SpeculationConfig

# What both call the same is the same.
_SAME_NAMES = {field.name for field in dataclasses.fields(EngineConfig)} & KNOB_BY_NAME.keys()
_SAME_NAMES -= {"served_model_name", "max_num_batched_tokens", "custom_histogram_buckets"}


def make_engine_config(settings: Settings, index: int) -> EngineConfig:
    """The configuration of the engine of model number `index`; the settings must be complete."""
    assert settings.run_dir is not None
    return EngineConfig(
        **{name: getattr(settings, name) for name in _SAME_NAMES},
        model_path=settings.model[index],
        socket_path=settings.run_dir / f"engine-{index}.sock",
        served_model_name=names_by_model(settings, settings.model)[index][0],
        max_num_batched_tokens=settings.max_num_batched_tokens or default_token_budget(settings.device),
        kv_cache_memory_bytes=settings.kv_cache_memory,
        log_stats_interval_s=settings.log_stats_interval,
        engine_timeout_s=settings.engine_timeout,
        journal_path=journal_path(settings.run_dir, index),
        counts_path=settings.run_dir / "prometheus" / f"engine-{index}.json",
        custom_histogram_buckets=make_buckets(settings),
        speculation=make_speculation(settings),
    )


def make_buckets(settings: Settings) -> dict[str, tuple[float, ...]]:
    """Bounds by histogram, the ``vllm:`` in front being optional."""
    given = settings.custom_histogram_buckets or {}
    return {name.removeprefix("vllm:"): tuple(map(float, bounds)) for name, bounds in given.items()}


def make_speculation(settings: Settings) -> SpeculationConfig | None:
    """What --speculative-config says; None is off."""
    given = settings.speculative_config
    if given is None:
        return None
    fewest, most = lookup_lengths(given)
    return SpeculationConfig(
        num_speculative_tokens=given["num_speculative_tokens"],
        prompt_lookup_max=most,
        prompt_lookup_min=fewest,
        disable_by_batch_size=given.get("disable_by_batch_size"),
        adaptive=given.get("adaptive", True),
    )


def run_engine(settings: Settings, index: int) -> NoReturn:
    """Serve until SIGTERM and end this process. Raises engine.errors.ConfigError."""
    from engine.server import serve  # torch and all that is only for this process

    status = serve(make_engine_config(settings, index))
    logging.shutdown()
    # The interpreter would take torch apart piece by piece, for seconds.
    os._exit(status)
