"""Engines, schedulers and requests in one line, with small numbers where a test doesn't say otherwise."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest, RequestOutput, SamplingParams, merge_outputs
from engine.step import RunnerInfo
from tests.unit.engine.chain_runner import ChainRunner

VOCAB_SIZE = 1000
_ids = itertools.count()


def make_config(**knobs: Any) -> EngineConfig:
    return EngineConfig(model_path=Path("model"), socket_path=Path("engine.sock"), **knobs)


def make_info(**facts: Any) -> RunnerInfo:
    defaults: dict[str, Any] = {
        "num_blocks": 64,
        "block_size": 4,
        "max_model_len": 200,
        "vocab_size": VOCAB_SIZE,
        "eos_token_ids": frozenset(),
        "dtype": "float32",
        "device": "cpu",
    }
    return RunnerInfo(**(defaults | facts))


def make_core(
    *,
    info: RunnerInfo | None = None,
    tokens_per_step: int = 1,
    clock: Callable[[], float] = time.monotonic,
    **knobs: Any,
) -> EngineCore:
    runner = ChainRunner(info or make_info(), tokens_per_step=tokens_per_step)
    return EngineCore(make_config(**knobs), runner, clock=clock)


def make_message(prompt: int | list[int], request_id: str | None = None, **fields: Any) -> GenerateRequest:
    """A request for a prompt, or for `prompt` tokens of which no other call gets the same."""
    names = SamplingParams.__struct_fields__
    sampling = {name: fields.pop(name) for name in list(fields) if name in names}
    number = next(_ids)
    if isinstance(prompt, int):
        prompt = [(number * 7919 + index * 31) % VOCAB_SIZE for index in range(prompt)]
    return GenerateRequest(
        request_id=request_id or f"r{number}",
        prompt_token_ids=prompt,
        sampling=SamplingParams(**({"max_tokens": 4, "seed": 0} | sampling)),
        **fields,
    )


def add(core: EngineCore, *messages: GenerateRequest) -> None:
    for message in messages:
        assert core.add(message) is None


def run(core: EngineCore, max_steps: int = 1000) -> dict[str, RequestOutput]:
    """Step until nothing is left; the merged output of each request."""
    merged: dict[str, RequestOutput] = {}
    for _ in range(max_steps):
        if not core.has_work():
            return merged
        for output in core.step():
            if output.request_id in merged:
                merge_outputs(merged[output.request_id], output)
            else:
                merged[output.request_id] = output
    raise AssertionError(f"still at work after {max_steps} steps")


def step_until(core: EngineCore, condition: Callable[[], bool]) -> None:
    """Step until `condition` holds."""
    for _ in range(1000):
        if condition():
            return
        core.step()
    raise AssertionError("it never came to that")


def value_of(core: EngineCore, name: str, **labels: str) -> float:
    """The value of one series of the engine's metrics."""
    labels = {"model_name": "model", "engine": "0"} | labels
    value = core.metrics._registry.collectors.get_sample_value(f"vllm:{name}", labels)
    assert value is not None, f"no series {name} {labels}"
    return value


def rows_of(core: EngineCore, step: int = -1) -> dict[str, int]:
    """Request id → tokens computed in a step, in scheduling order."""
    runner = core._runner
    assert isinstance(runner, ChainRunner)
    return {row.request_id: row.num_scheduled_tokens for row in runner.steps[step].rows}
