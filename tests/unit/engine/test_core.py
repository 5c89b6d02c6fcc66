"""EngineCore: what it refuses, what it delivers when, resumed requests, aborts, faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.messages import GenerateRequest, RequestOutput
from engine.step import StepInput, StepOutput
from tests.unit.engine.builders import VOCAB_SIZE, add, make_core, make_info, make_message, run, value_of
from tests.unit.engine.chain_runner import ChainRunner, generate


def refusal(message: GenerateRequest, **facts: object) -> RequestOutput:
    core = make_core(info=make_info(**facts))
    output = core.add(message)
    assert output is not None
    assert (output.request_id, output.finish_reason, output.token_ids) == (message.request_id, "error", [])
    assert not core.has_work()
    return output


class TestRefusals:
    def test_an_empty_prompt(self):
        output = refusal(make_message([]))
        assert output.error_param == "prompt_token_ids"
        assert output.error == "prompt_token_ids is empty: at least one token is needed"

    @pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE])
    @pytest.mark.parametrize(
        "field", ["resumed_token_ids", "stop_token_ids", "allowed_token_ids", "logit_bias", "logprob_token_ids"]
    )
    def test_ids_outside_the_vocabulary(self, field, token_id):
        value = {3: 1.0, token_id: 1.0} if field == "logit_bias" else [3, token_id]
        output = refusal(make_message(3, **{field: value}))
        assert output.error_param == field
        assert output.error == f"{field} has token id {token_id}, but ids go from 0 to 999"

    def test_prompt_ids_outside_the_vocabulary(self):
        assert refusal(make_message([1, VOCAB_SIZE])).error_param == "prompt_token_ids"

    def test_bad_words_outside_the_vocabulary(self):
        assert refusal(make_message(3, bad_words_token_ids=[[1], [2, 1000]])).error_param == "bad_words_token_ids"

    def test_a_prompt_that_leaves_no_room_for_output(self):
        output = refusal(make_message(200))
        assert output.error_param == "prompt_token_ids"
        assert output.error is not None
        assert "prompt_token_ids has 200 tokens, but max_model_len is 200 tokens" in output.error
        assert make_core().add(make_message(199)) is None

    def test_a_prompt_that_the_whole_cache_cannot_hold(self):
        output = refusal(make_message(50), num_blocks=10)
        assert output.error is not None
        assert "prompt_token_ids has 50 tokens, but the whole KV cache is 40 tokens" in output.error

    def test_a_request_id_in_flight(self):
        core = make_core()
        message = make_message(3)
        add(core, message)
        output = core.add(message)
        assert output is not None
        assert output.error_param == "request_id"
        assert run(core)[message.request_id].finish_reason == "length"
        assert core.add(message) is None  # it is free again


class TestOutputs:
    def test_every_token_is_delivered_as_it_comes(self):
        core = make_core()
        message = make_message(5, max_tokens=3)
        add(core, message)
        outputs = [output for _ in range(3) for output in core.step()]
        assert [len(output.token_ids) for output in outputs] == [1, 1, 1]
        assert [output.finish_reason for output in outputs] == [None, None, "length"]
        assert [output.num_cached_tokens for output in outputs] == [0, None, None]
        assert not core.has_work()

    def test_logprobs_are_parallel_to_the_tokens(self):
        core = make_core()
        with_logprobs, without = make_message(5, logprobs=1), make_message(5)
        add(core, with_logprobs, without)
        outputs = run(core)
        entries = outputs[with_logprobs.request_id].logprobs
        assert entries is not None
        assert [entry.token_id for entry in entries] == outputs[with_logprobs.request_id].token_ids
        assert outputs[without.request_id].logprobs is None

    @pytest.mark.parametrize("budget", [1, 3, 4, 50])
    def test_prompt_logprobs_come_whole_with_the_first_output(self, budget):
        core = make_core(max_num_batched_tokens=budget)
        message = make_message(10, prompt_logprobs=0)
        add(core, message)
        outputs = []
        while core.has_work():
            outputs += core.step()
        entries = outputs[0].prompt_logprobs
        assert entries is not None
        assert entries[0] is None
        assert [entry.token_id for entry in entries[1:] if entry] == message.prompt_token_ids[1:]
        assert all(output.prompt_logprobs is None for output in outputs[1:])

    def test_prompt_logprobs_of_one_token_are_one_none(self):
        core = make_core()
        message = make_message(1, prompt_logprobs=0)
        add(core, message)
        assert run(core)[message.request_id].prompt_logprobs == [None]

    def test_prompt_logprobs_are_whole_after_a_preemption_amid_the_prompt(self):
        core = make_core(info=make_info(num_blocks=7, max_model_len=28), max_num_batched_tokens=3)
        first, second = make_message(8, max_tokens=20), make_message(16, prompt_logprobs=0, max_tokens=1)
        add(core, first, second)
        entries = run(core)[second.request_id].prompt_logprobs
        assert entries is not None
        assert [entry.token_id for entry in entries[1:] if entry] == second.prompt_token_ids[1:]
        assert value_of(core, "num_preemptions_total") > 0


class TestResumed:
    @pytest.mark.parametrize("num_resumed", range(1, 8))
    def test_it_goes_on_with_the_same_sequence(self, num_resumed):
        message = make_message(6, max_tokens=8)
        expected = generate(message.prompt_token_ids, 8, VOCAB_SIZE)
        resumed = make_message(message.prompt_token_ids, max_tokens=8, resumed_token_ids=expected[:num_resumed])
        core = make_core()
        add(core, resumed)
        output = run(core)[resumed.request_id]
        assert output.token_ids == expected[num_resumed:]
        assert output.finish_reason == "length"

    def test_the_message_is_not_changed(self):
        message = make_message(6, max_tokens=8, resumed_token_ids=[1])
        core = make_core()
        add(core, message)
        run(core)
        assert message.resumed_token_ids == [1]

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"resumed_token_ids": [1, 2, 3, 4], "max_tokens": 4}, ("length", None)),
            ({"resumed_token_ids": [1, 9]}, ("stop", None)),
            ({"resumed_token_ids": [1, 5], "stop_token_ids": [5]}, ("stop", 5)),
            ({"resumed_token_ids": [1] * 199, "max_tokens": 500}, ("length", None)),
        ],
    )
    def test_one_that_is_past_its_end_finishes_at_once(self, fields, expected):
        core = make_core(info=make_info(eos_token_ids=frozenset({9})))
        output = core.add(make_message(6, **fields))
        assert output is not None
        assert (output.finish_reason, output.stop_reason) == expected
        assert output.token_ids == []
        assert not core.has_work()

    def test_its_prefix_may_be_cached_up_to_the_whole_prompt(self):
        core = make_core()
        message = make_message(8, max_tokens=10)
        add(core, message)
        produced = run(core)[message.request_id].token_ids
        resumed = make_message(message.prompt_token_ids, max_tokens=10, resumed_token_ids=produced[:8])
        add(core, resumed)
        assert run(core)[resumed.request_id].num_cached_tokens == 8

    def test_prompt_logprobs_were_delivered_before(self):
        core = make_core()
        message = make_message(8, prompt_logprobs=1, resumed_token_ids=[1])
        add(core, message)
        assert run(core)[message.request_id].prompt_logprobs is None


class TestAbort:
    @pytest.mark.parametrize("num_steps", [0, 1, 2])
    def test_its_blocks_are_free_at_once(self, num_steps):
        core = make_core(max_num_batched_tokens=10)
        messages = [make_message(15, max_tokens=50) for _ in range(3)]
        add(core, *messages)
        for _ in range(num_steps):
            core.step()
        outputs = core.abort([message.request_id for message in messages])
        assert [output.request_id for output in outputs] == [message.request_id for message in messages]
        assert {output.finish_reason for output in outputs} == {"abort"}
        assert (core.num_running, core.num_waiting, core.kv_cache_usage) == (0, 0, 0)
        assert not core.has_work()
        assert core.step() == []

    def test_unknown_and_repeated_ids_are_ignored(self):
        core = make_core()
        message = make_message(3)
        add(core, message)
        assert len(core.abort(["who", message.request_id, message.request_id])) == 1
        assert core.abort([message.request_id]) == []

    def test_the_others_go_on(self):
        core = make_core()
        messages = [make_message(9) for _ in range(3)]
        add(core, *messages)
        core.step()
        core.abort([messages[1].request_id])
        assert set(run(core)) == {messages[0].request_id, messages[2].request_id}

    def test_a_preempted_request_can_be_aborted(self):
        core = make_core(info=make_info(num_blocks=6, max_model_len=24))
        first, second = make_message(8, max_tokens=12), make_message(8, max_tokens=12)
        add(core, first, second)
        for _ in range(6):
            core.step()
        assert core.num_waiting == 1
        core.abort([second.request_id])
        assert core.num_waiting == 0
        run(core)
        assert core.kv_cache_usage == 0


def test_a_fault_of_the_runner_goes_through():
    class FaultyRunner(ChainRunner):
        def execute(self, step: StepInput) -> StepOutput:
            raise RuntimeError("out of luck")

    core = make_core()
    core._runner = FaultyRunner(core.info)
    add(core, make_message(3))
    with pytest.raises(RuntimeError, match="out of luck"):
        core.step()


def test_extra_eos_ids_of_the_config_count():
    core = make_core(extra_eos_token_ids=(5,), info=make_info(eos_token_ids=frozenset({6})))
    assert core.info.eos_token_ids == {5, 6}


def test_a_context_beyond_the_cache_is_cut_and_logged(caplog):
    core = make_core(info=make_info(num_blocks=10))
    assert core.info.max_model_len == 40
    assert "max_model_len=200 kv_cache_tokens=40" in caplog.text


def test_torch_is_not_imported():
    code = "import sys, engine.core; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
