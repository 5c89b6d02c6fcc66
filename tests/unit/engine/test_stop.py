"""When a request is done: EOS, stop ids, length, in this order; min_tokens; several tokens in one step."""

from __future__ import annotations

import pytest

from engine.request import Request, Timeline
from engine.scheduler.stop import StopRule
from tests.unit.engine.builders import add, make_core, make_info, make_message, run
from tests.unit.engine.chain_runner import generate

EOS = 7
RULE = StopRule(frozenset({EOS, 8}), max_model_len=20)


def outcome(output: list[int], num_prompt: int = 4, **sampling: object) -> tuple[str | None, int | None]:
    message = make_message(num_prompt, **({"max_tokens": 10} | sampling))
    request = Request(message.request_id, message.prompt_token_ids, output, message.sampling, Timeline(0.0, 0.0))
    assert RULE.apply(request) == request.is_finished
    return request.finish_reason, request.stop_reason


@pytest.mark.parametrize(
    ("output", "sampling", "expected"),
    [
        ([1, 2], {}, (None, None)),
        ([1, EOS], {}, ("stop", None)),
        ([1, 8], {}, ("stop", None)),
        ([EOS, 1], {}, (None, None)),
        ([1, EOS], {"ignore_eos": True}, (None, None)),
        ([1, 5], {"stop_token_ids": [5]}, ("stop", 5)),
        ([1, EOS], {"stop_token_ids": [EOS]}, ("stop", None)),
        ([1, EOS], {"stop_token_ids": [EOS], "ignore_eos": True}, ("stop", EOS)),
        ([1, 2], {"max_tokens": 2}, ("length", None)),
        ([1, EOS], {"max_tokens": 2}, ("stop", None)),
        ([1, 5], {"max_tokens": 2, "stop_token_ids": [5]}, ("stop", 5)),
        ([1, EOS], {"min_tokens": 3}, (None, None)),
        ([1, 5], {"min_tokens": 3, "stop_token_ids": [5]}, (None, None)),
        ([1, EOS], {"min_tokens": 2}, ("stop", None)),
        ([1, EOS], {"min_tokens": 9, "max_tokens": 2}, ("length", None)),
    ],
)
def test_the_rule(output, sampling, expected):
    assert outcome(output, **sampling) == expected


def test_the_context_ends_a_request():
    assert outcome([1, 2], num_prompt=17) == (None, None)
    assert outcome([1, 2], num_prompt=18) == ("length", None)


def test_tokens_after_the_stopping_one_are_dropped():
    message = make_message(6, max_tokens=50, logprobs=0)
    third = generate(message.prompt_token_ids, 3, 1000)[2]
    core = make_core(info=make_info(eos_token_ids=frozenset({third})), tokens_per_step=5)
    add(core, message)
    output = run(core)[message.request_id]
    assert output.token_ids == generate(message.prompt_token_ids, 3, 1000)
    assert output.finish_reason == "stop"
    assert output.logprobs is not None
    assert [entry.token_id for entry in output.logprobs] == output.token_ids


@pytest.mark.parametrize("tokens_per_step", [1, 2, 3, 7])
def test_several_tokens_a_step_give_the_same_sequence(tokens_per_step):
    core = make_core(tokens_per_step=tokens_per_step)
    message = make_message(6, max_tokens=31)
    add(core, message)
    output = run(core)[message.request_id]
    assert output.token_ids == generate(message.prompt_token_ids, 31, 1000)
    assert output.finish_reason == "length"
