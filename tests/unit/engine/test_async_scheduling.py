"""Async scheduling: what is planned ahead, what waits, and that nobody sees a difference in what comes out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.config import SpeculationConfig
from engine.core import EngineCore
from engine.errors import ConfigError
from engine.messages import GenerateRequest, RequestOutput
from engine.step import StepInput, StepOutput
from tests.unit.engine.builders import (
    VOCAB_SIZE,
    add,
    make_config,
    make_core,
    make_info,
    make_message,
    run,
    step_until,
    value_of,
)
from tests.unit.engine.chain_runner import ChainRunner, generate
from tests.unit.engine.lives import Lives
from tests.unit.grammar.builders import Engine, make_request, schema_grammar

PATIENCE_S = 30.0


class GatedRunner(ChainRunner):
    """Computes a step when it is let; says how many it was given."""

    def __init__(self) -> None:
        super().__init__(make_info())
        self.gate = threading.Semaphore(0)

    def execute(self, step: StepInput) -> StepOutput:
        assert self.gate.acquire(timeout=PATIENCE_S)
        return super().execute(step)


@pytest.fixture
def gated() -> Iterator[EngineCore]:
    core = EngineCore(make_config(async_scheduling=True), GatedRunner())
    yield core
    gate_of(core).release(100)
    core.close()


def gate_of(core: EngineCore) -> threading.Semaphore:
    assert isinstance(core._runner, GatedRunner)
    return core._runner.gate


def rows_of(core: EngineCore) -> list[list[str]]:
    """The requests of each step that was computed."""
    assert isinstance(core._runner, ChainRunner)
    return [[row.request_id for row in step.rows] for step in core._runner.steps]


def both(*messages: GenerateRequest, info: dict[str, Any] | None = None, **knobs: Any) -> dict[str, RequestOutput]:
    """What comes out, which is the same either way."""
    outputs = []
    for is_async in (False, True):
        core = make_core(info=make_info(**(info or {})), async_scheduling=is_async, **knobs)
        add(core, *messages)
        outputs.append(run(core))
        core.close()
        assert (core.num_running, core.kv_cache_usage) == (0, 0)
    assert outputs[0] == outputs[1]
    return outputs[1]


class TestAhead:
    def test_a_step_begins_before_the_one_before_it_is_done(self, gated: EngineCore) -> None:
        message = make_message(5, max_tokens=3)
        add(gated, message)
        assert gated.step() == []  # it is under way, and nobody waits for it yet
        gate_of(gated).release()
        (output,) = gated.step()
        assert output.token_ids == generate(message.prompt_token_ids, 1, VOCAB_SIZE)
        assert [len(under_way.planned.step.rows) for under_way in gated._under_way] == [1]
        assert gated._under_way[0].planned.step.rows[0].awaits_token

    def test_a_length_is_known_ahead(self) -> None:
        core = make_core(async_scheduling=True, info=make_info(max_model_len=12))
        add(core, make_message(5, max_tokens=3), make_message(9, max_tokens=50))
        outputs = run(core)
        core.close()
        assert [len(output.token_ids) for output in outputs.values()] == [3, 3]
        assert len(rows_of(core)) == 3

    def test_the_token_after_the_last_one_is_dropped(self) -> None:
        message = make_message(5, max_tokens=20)
        stop = generate(message.prompt_token_ids, 4, VOCAB_SIZE)[-1]
        sampling = msgspec.structs.replace(message.sampling, stop_token_ids=[stop])
        core = make_core(async_scheduling=True)
        add(core, msgspec.structs.replace(message, sampling=sampling))
        (output,) = run(core).values()
        core.close()
        assert output.token_ids == generate(message.prompt_token_ids, 4, VOCAB_SIZE)
        assert (output.finish_reason, output.stop_reason) == ("stop", stop)
        assert len(rows_of(core)) == 5
        assert value_of(core, "generation_tokens_total") == 4
        assert not core.has_work()

    def test_nothing_is_planned_ahead_where_somebody_must_give_way(self) -> None:
        messages = [make_message(8, max_tokens=30) for _ in range(3)]
        both(*messages, info={"num_blocks": 12, "max_model_len": 48})
        core = make_core(async_scheduling=True, info=make_info(num_blocks=12, max_model_len=48))
        add(core, *messages)
        run(core)
        core.close()
        assert value_of(core, "num_preemptions_total") > 0


class TestSameOutputs:
    def test_prompts_in_chunks_beside_decodes(self) -> None:
        messages = [make_message(length, max_tokens=6, logprobs=1) for length in (3, 40, 17, 9)]
        both(*messages, max_num_batched_tokens=8)

    def test_prompt_logprobs(self) -> None:
        both(make_message(20, prompt_logprobs=0), make_message(4), max_num_batched_tokens=6)

    def test_shared_prefixes(self) -> None:
        prompt = list(range(30))
        both(*(make_message([*prompt, last], max_tokens=9) for last in range(6)), max_num_seqs=2)

    def test_priorities(self) -> None:
        messages = [make_message(9, max_tokens=12, priority=number % 3) for number in range(9)]
        both(*messages, info={"num_blocks": 10, "max_model_len": 40}, scheduling_policy="priority")

    def test_an_end_that_comes_unawares(self) -> None:
        eos = frozenset(range(0, VOCAB_SIZE, 7))
        outputs = both(
            *(make_message(5, max_tokens=40) for _ in range(20)), info={"eos_token_ids": eos}, max_num_seqs=8
        )
        assert {output.finish_reason for output in outputs.values()} >= {"stop"}


class TestAbort:
    def test_its_blocks_are_free_at_once(self, gated: EngineCore) -> None:
        message = make_message(9, max_tokens=9)
        add(gated, message)
        gated.step()
        assert [output.finish_reason for output in gated.abort([message.request_id])] == ["abort"]
        assert (gated.num_running, gated.kv_cache_usage) == (0, 0)
        gate_of(gated).release(100)
        assert run(gated) == {}

    def test_another_of_the_same_id_gets_its_own_tokens(self, gated: EngineCore) -> None:
        first, second = make_message(9, "same", max_tokens=5), make_message(6, "same", max_tokens=5)
        add(gated, first)
        gate_of(gated).release(100)
        step_until(gated, lambda: len(gated._under_way) == 1 and gated._under_way[0].planned.step.rows[0].awaits_token)
        gated.abort(["same"])
        add(gated, second)
        assert run(gated)["same"].token_ids == generate(second.prompt_token_ids, 5, VOCAB_SIZE)


def test_a_fault_goes_through() -> None:
    class FaultyRunner(ChainRunner):
        def execute(self, step: StepInput) -> StepOutput:
            if self.steps:
                raise RuntimeError("out of luck")
            return super().execute(step)

    core = EngineCore(make_config(async_scheduling=True), FaultyRunner(make_info()))
    add(core, make_message(3))
    with pytest.raises(RuntimeError, match="out of luck"):
        run(core)
    core.close()


def test_a_poison_is_found_as_ever(tmp_path: Path) -> None:
    requests = [make_message(3 + number % 9, f"r{number}", max_tokens=20) for number in range(12)]
    lives = Lives(
        tmp_path / "journal",
        requests,
        lambda name, num_tokens: name == "r5" and num_tokens == 7,
        async_scheduling=True,
    )
    lives.run()
    assert lives.faults == 2
    assert {name for name, output in lives.ended.items() if output.is_poison} == {"r5"}
    for request in requests:
        if request.request_id != "r5":
            assert lives.tokens[request.request_id] == generate(request.prompt_token_ids, 20, VOCAB_SIZE)


def test_a_grammar_sees_each_token_before_the_next(smollm2: Path) -> None:
    grammar = schema_grammar({"type": "array", "items": {"type": "integer"}, "maxItems": 20})
    requests = [make_request(grammar, "grammar", seed=3), make_request(None, "free", max_tokens=60)]
    outputs = []
    for is_async in (False, True):
        engine = Engine(smollm2, async_scheduling=is_async)
        outputs.append(engine.run(*requests))
        engine.core.close()
    assert outputs[0] == outputs[1]
    assert outputs[1]["grammar"].finish_reason == "stop"


@pytest.mark.parametrize(
    ("knobs", "problem"),
    [
        ({"speculation": SpeculationConfig(num_speculative_tokens=3)}, "cannot be combined with speculation"),
        ({"tensor_parallel_size": 2}, "async_scheduling needs tensor_parallel_size 1, but it is 2"),
    ],
)
def test_what_it_cannot_be_combined_with(knobs: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_config(async_scheduling=True, **knobs)
