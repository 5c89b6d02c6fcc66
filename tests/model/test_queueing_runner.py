"""Async scheduling on a GPU, on a CPU: steps are queued over staging, graphs by a stand-in and the device sampler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest, RequestOutput
from engine.runner.gpu import make_gpu_forward_pass
from engine.runner.load_plan import make_info
from engine.runner.model_runner import ModelRunner
from engine.runner.queueing_runner import QueueingRunner, Wait
from engine.sampling.device import DeviceSampler
from engine.step import RunnerInfo, StepInput
from tests.model.driver import make_prompts, make_request, run_to_end
from tests.model.recorded_graphs import RecordingBackend
from tests.model.test_gpu_runner import load
from tests.tiny_models import VOCAB_SIZE, TinyModel

NUM_BLOCKS = 64
BARE: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.7, "seed": 6, "top_k": 30, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.0, "seed": 7, "stop_token_ids": list(range(0, VOCAB_SIZE, 9))},
]
LATE: list[dict[str, Any]] = [
    {"logprobs": 3},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.3},
    {"temperature": 1.0, "seed": 8, "prompt_logprobs": 1},
    {"logit_bias": {7: 4.0}, "bad_words_token_ids": [[3], [4, 7]]},
    {"min_tokens": 4, "stop_token_ids": list(range(0, VOCAB_SIZE, 3))},
]


class WatchedRunner(QueueingRunner):
    """Counts the steps that were queued, and those whose tokens came from the device."""

    num_queued = 0
    num_awaiting = 0

    def _queue(self, step: StepInput) -> Wait:
        self.num_queued += 1
        self.num_awaiting += any(row.awaits_token for row in step.rows)
        return super()._queue(step)


def make_requests(kinds: list[dict[str, Any]], max_tokens: int = 12) -> list[GenerateRequest]:
    """Of all lengths, so that kinds come and go."""
    prompts = make_prompts(3 * len(kinds), VOCAB_SIZE, seed=2, longest=60)
    return [
        make_request(str(index), prompt, max_tokens=max_tokens + index % 7, **kinds[index % len(kinds)])
        for index, prompt in enumerate(prompts)
    ]


def serve(core: EngineCore, requests: list[GenerateRequest]) -> dict[str, RequestOutput]:
    outputs = run_to_end(core, requests)
    assert core.kv_cache_usage == 0
    return outputs


@pytest.fixture(scope="module", params=[False, True], ids=["graphs", "eager"])
def runner(request: pytest.FixtureRequest, tiny: Callable[[str], TinyModel]) -> tuple[WatchedRunner, EngineConfig]:
    plan, model = load(tiny("qwen3").baked, enforce_eager=request.param, async_scheduling=True)
    forward = make_gpu_forward_pass(plan, model, NUM_BLOCKS, lambda _phase, _percent: None, RecordingBackend())
    info = make_info(plan, NUM_BLOCKS)
    return WatchedRunner(forward, info, DeviceSampler(info.eos_token_ids, plan.sampling_implementation)), plan.config


def expected(runner: WatchedRunner, config: EngineConfig, requests: list[GenerateRequest]) -> dict[str, RequestOutput]:
    """What the same parts make of it, each step after the other."""

    class InTurn:
        info: RunnerInfo = runner.info
        execute = staticmethod(lambda step: ModelRunner.execute(runner, step))

    knobs = {name: getattr(config, name) for name in config.__dataclass_fields__}
    return serve(EngineCore(EngineConfig(**(knobs | {"async_scheduling": False})), InTurn()), requests)


@pytest.mark.parametrize("kinds", [BARE, LATE, BARE + LATE], ids=["bare", "late", "mixed"])
def test_queued_steps_change_nothing(runner: tuple[WatchedRunner, EngineConfig], kinds: list[dict[str, Any]]) -> None:
    watched, config = runner
    requests = make_requests(kinds)
    watched.num_queued = watched.num_awaiting = 0
    found = serve(EngineCore(config, watched), requests)
    assert (watched.num_awaiting > 0) is (kinds is not LATE)
    assert found == expected(watched, config, requests)


def test_preempted(runner: tuple[WatchedRunner, EngineConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    watched, config = runner
    requests = make_requests(BARE, max_tokens=40)
    right = expected(watched, config, requests)
    monkeypatch.setattr(watched, "info", dataclasses.replace(watched.info, num_blocks=14))
    core = EngineCore(config, watched)
    found = serve(core, requests)
    assert core.metrics.totals().preemptions > 0
    for request_id, output in found.items():
        assert (output.token_ids, output.finish_reason) == (
            right[request_id].token_ids,
            right[request_id].finish_reason,
        )


def test_the_host_is_only_asked_where_it_must_be(runner: tuple[WatchedRunner, EngineConfig]) -> None:
    watched, config = runner
    watched.num_queued = watched.num_awaiting = 0
    watched.execute = lambda step: pytest.fail("a step was computed late")  # type: ignore[method-assign]
    try:
        serve(EngineCore(config, watched), make_requests(BARE))
    finally:
        del watched.execute
    assert watched.num_awaiting > watched.num_queued / 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(tiny: Callable[[str], TinyModel]) -> None:
    from engine.runner import make_runner

    outputs = []
    for is_async in (False, True):
        plan_config = EngineConfig(
            model_path=tiny("qwen3").baked,
            socket_path=tiny("qwen3").baked / "unused",
            device="cuda",
            dtype="float32",
            max_model_len=200,
            batch_invariant=True,  # steps hold other requests together than without
            num_gpu_blocks_override=NUM_BLOCKS,
            async_scheduling=is_async,
        )
        runner = make_runner(plan_config)
        assert isinstance(runner, QueueingRunner) is is_async
        outputs.append(serve(EngineCore(plan_config, runner), make_requests(BARE + LATE)))
    assert {name: one.token_ids for name, one in outputs[0].items()} == {
        name: one.token_ids for name, one in outputs[1].items()
    }
