"""A grammar's mask in the sampler: it wins over everything, and shows in nothing but the choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.messages import SamplingParams
from engine.sampling.sampler import Sampled, Sampler
from engine.step import StepRow

VOCAB_SIZE = 100
EOS = 2


def mask_of(*allowed: int, num_bits: int = 128) -> np.ndarray:
    bits = np.zeros(num_bits, dtype=np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def sample(mask: np.ndarray | None, output: list[int] | None = None, **fields: Any) -> Sampled:
    sampling = SamplingParams(max_tokens=50, **({"seed": 7, "temperature": 0.0} | fields))
    row = StepRow("r", [5, 6], output or [], 0, 2, [0], sampling, samples=True, token_mask=mask)
    logits = torch.linspace(-3, 3, VOCAB_SIZE).repeat(1, 1)
    return Sampler(frozenset({EOS})).sample(logits, [row])[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("truncation", [{}, {"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.9}])
def test_only_what_is_allowed_comes_out(temperature: float, truncation: dict[str, Any]) -> None:
    for seed in range(20):
        assert sample(mask_of(3, 40, 41), seed=seed, temperature=temperature, **truncation).token_id in (3, 40, 41)


def test_the_likeliest_of_the_allowed_is_the_greedy_choice() -> None:
    assert sample(mask_of(3, 40, 41)).token_id == 41
    assert sample(None).token_id == VOCAB_SIZE - 1


def test_bias_cannot_bring_a_masked_token_back() -> None:
    assert sample(mask_of(3, 4), logit_bias={99: 100.0, 50: 100.0}).token_id == 4
    assert sample(mask_of(3, 4), logit_bias={3: 100.0}).token_id == 3, "among the allowed it counts"
    assert sample(mask_of(3), logit_bias={3: -100.0}).token_id == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": [50, 60]},
        {"bad_words_token_ids": [[3], [4]]},
        {"allowed_token_ids": [3], "bad_words_token_ids": [[3]]},
        {"repetition_penalty": 5.0, "frequency_penalty": 2.0, "presence_penalty": 2.0},
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rules_that_leave_nothing_give_way(fields: dict[str, Any], temperature: float) -> None:
    assert sample(mask_of(3, 4), output=[3, 4, 4], temperature=temperature, **fields).token_id in (3, 4)


def test_rules_that_leave_something_hold() -> None:
    assert sample(mask_of(3, 4), allowed_token_ids=[3, 50]).token_id == 3
    assert sample(mask_of(3, 4), bad_words_token_ids=[[4]]).token_id == 3
    assert sample(mask_of(3, 4), output=[4] * 9, presence_penalty=2.0).token_id == 3


def test_the_mask_has_settled_what_min_tokens_means() -> None:
    assert sample(mask_of(EOS), min_tokens=10).token_id == EOS
    assert sample(mask_of(EOS, 3), min_tokens=10, logit_bias={EOS: 50.0}).token_id == EOS


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    masked, free = sample(mask_of(3), logprobs=2), sample(None, logprobs=2)
    assert masked.logprobs is not None
    assert free.logprobs is not None
    assert masked.logprobs.top == free.logprobs.top
    raw = torch.log_softmax(torch.linspace(-3, 3, VOCAB_SIZE), dim=-1)
    assert masked.logprobs.logprob == pytest.approx(float(raw[3]))
    assert masked.logprobs.rank == VOCAB_SIZE - 3


def test_a_mask_may_be_narrower_or_wider_than_the_logits() -> None:
    assert sample(mask_of(3, 31, num_bits=32), temperature=1.0).token_id in (3, 31)
    assert sample(mask_of(3, 120, num_bits=256)).token_id == 3
