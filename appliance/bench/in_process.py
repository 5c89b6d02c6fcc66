"""An engine in this process, without socket and HTTP, for `bench latency` and `bench throughput`.

Takes the flags of the model and of the engine as `breadbox serve` has them.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.derived_settings import find_models
from appliance.engine_process import make_engine_config
from appliance.errors import ApplianceError
from appliance.settings import KNOBS, LoadedSettings, add_flags, load_settings
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest, RequestOutput, SamplingParams

_GROUPS = ("Model", "Engine")


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """The model, and the settings of an engine."""
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="baked model folder, or the name of one in --models-dir"
    )
    add_flags(parser, only=_GROUPS)


def load_engine_settings(args: argparse.Namespace) -> LoadedSettings:
    """Flags, environment and defaults; ``model`` is one baked folder. Raises SettingsError."""
    words = {knob.name: getattr(args, knob.name, None) for knob in KNOBS if knob.group in _GROUPS}
    words["model"] = [*args.models, *(words["model"] or [])] or None
    loaded = load_settings(words)
    model = find_models(loaded.settings)[:1]
    names = loaded.settings.served_model_name[:1]
    settings = dataclasses.replace(loaded.settings, model=model, served_model_name=names, run_dir=Path("unused"))
    return LoadedSettings(settings, loaded.sources)


def load_core(loaded: LoadedSettings, prefix_caching: bool) -> EngineCore:
    """Load the model. ``prefix_caching`` holds unless the settings say otherwise. Raises ConfigError."""
    from engine.runner import make_runner  # torch is only for those who compute

    config = load_config(loaded, prefix_caching)
    return EngineCore(config, make_runner(config))


def load_config(loaded: LoadedSettings, prefix_caching: bool) -> EngineConfig:
    """The engine's configuration, without what only a box needs."""
    config = dataclasses.replace(make_engine_config(loaded.settings, 0), counts_path=None, log_stats_interval_s=0.0)
    if loaded.sources["enable_prefix_caching"] == "default":
        config = dataclasses.replace(config, enable_prefix_caching=prefix_caching)
    return config


@dataclass(frozen=True)
class Generated:
    """What a batch came to; times are seconds from its start."""

    duration_s: float
    first_tokens_s: float  # until each request had its first token
    num_output_tokens: int


def generate(
    core: EngineCore, requests: Sequence[GenerateRequest], on_finish: Callable[[], None] | None = None
) -> Generated:
    """Add all requests at once and step until they are done. Raises ApplianceError where one is refused or fails."""
    started_s = first_tokens_s = time.perf_counter()
    waiting = {request.request_id for request in requests}
    num_output_tokens = 0
    for request in requests:
        _check(core.add(request))
    while core.has_work():
        for output in core.step():
            _check(output)
            num_output_tokens += len(output.token_ids)
            if output.request_id in waiting:
                waiting.remove(output.request_id)
                first_tokens_s = time.perf_counter()
            if output.finish_reason and on_finish:
                on_finish()
    return Generated(time.perf_counter() - started_s, first_tokens_s - started_s, num_output_tokens)


def _check(output: RequestOutput | None) -> None:
    if output is not None and output.error is not None:
        raise ApplianceError(f"the engine refused a request: {output.error}")


def make_requests(name: str, prompt: list[int], output_len: int, n: int, seed: int) -> list[GenerateRequest]:
    """`n` requests for one prompt, each of exactly `output_len` tokens."""
    return [
        GenerateRequest(
            request_id=f"{name}-{index}",
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=output_len, seed=seed + index, ignore_eos=True),
        )
        for index in range(n)
    ]
