"""Async scheduling changes no bit of what comes out: tokens, logprobs, prompt logprobs, reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.messages import GenerateRequest, RequestOutput
from tests.model.driver import Engine, make_prompts, make_request
from tests.tiny_models import VOCAB_SIZE

PROMPTS = make_prompts(12, VOCAB_SIZE, seed=4, longest=60)
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 7, "logprobs": 3},
    {"temperature": 0.8, "seed": 8, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2, "logprobs": 0},
    {"bad_words_token_ids": [[5], [6, 7]], "logit_bias": {5: 9.0, 6: 4.0, 7: 4.0}},
    {"prompt_logprobs": 2, "max_tokens": 3},
    {"min_tokens": 9, "ignore_eos": False, "stop_token_ids": list(range(0, VOCAB_SIZE, 3))},
    {"temperature": 1.0, "seed": 9, "stop_token_ids": list(range(0, VOCAB_SIZE, 9))},
]


def requests() -> list[GenerateRequest]:
    """Of every kind, with prompts of all lengths."""
    return [
        make_request(str(number), prompt, **KINDS[number % len(KINDS)]) for number, prompt in enumerate(PROMPTS * 2)
    ]


def generate(engine: Engine, is_async: bool, **config: Any) -> tuple[dict[str, RequestOutput], set[str]]:
    """What comes out, and who was preempted."""
    run = engine.start(async_scheduling=is_async, **config)
    try:
        return run.generate(requests()), run.preempted
    finally:
        run.close()


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_every_kind_of_sampling(name: str, tiny_engine: Callable[[str], Engine]) -> None:
    config = {"max_num_seqs": 8, "max_num_batched_tokens": 40}
    expected, _ = generate(tiny_engine(name), is_async=False, **config)
    found, _ = generate(tiny_engine(name), is_async=True, **config)
    assert found == expected
    assert {output.finish_reason for output in found.values()} == {"stop", "length"}


def test_preempted(tiny_engine: Callable[[str], Engine]) -> None:
    expected, _ = generate(tiny_engine("llama"), is_async=False)
    found, preempted = generate(tiny_engine("llama"), is_async=True, num_blocks=12)
    assert preempted
    for request_id, output in found.items():
        assert (output.token_ids, output.logprobs) == (expected[request_id].token_ids, expected[request_id].logprobs)
