"""The default model against transformers, and the same promises at its size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine.messages import GenerateRequest
from tests.model.driver import Engine, make_prompts, make_request
from tests.model.truth import assert_greedy, load_baked_llama, relative_error, true_logits

VOCAB_SIZE = 49152
PROMPTS = make_prompts(20, VOCAB_SIZE, seed=5, longest=40)
PROMPT = PROMPTS[0] + PROMPTS[1] + PROMPTS[2]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def truth(smollm2: Path) -> PreTrainedModel:
    return load_baked_llama(smollm2)


def seeded() -> GenerateRequest:
    return make_request("subject", PROMPT, temperature=1.0, seed=99, max_tokens=24, logprobs=0)


def test_logits_equal_transformers_however_cut(smollm2_engine: Engine, truth: PreTrainedModel) -> None:
    whole = smollm2_engine.logits(PROMPT)
    assert relative_error(whole, true_logits(truth, PROMPT)) < 1e-4
    assert torch.equal(smollm2_engine.logits(PROMPT, [1, 2, 17, 18, len(PROMPT) - 3]), whole)


def test_greedy_ids_equal_transformers(smollm2_engine: Engine, truth: PreTrainedModel) -> None:
    requests = [make_request(str(index), prompt, max_tokens=64) for index, prompt in enumerate(PROMPTS)]
    outputs = smollm2_engine.start(max_num_batched_tokens=256).generate(requests)
    for index, prompt in enumerate(PROMPTS):
        assert len(outputs[str(index)].token_ids) == 64
        assert_greedy(truth, prompt, outputs[str(index)].token_ids)


def test_a_seed_decides_whatever_happens_around(smollm2_engine: Engine) -> None:
    run = smollm2_engine.start()
    alone = run.generate([seeded()])["subject"]
    warm = run.generate([seeded()])["subject"]
    assert warm.num_cached_tokens
    assert (warm.token_ids, warm.logprobs) == (alone.token_ids, alone.logprobs)

    others = [make_request(str(i), prompt, temperature=1.0, seed=i, max_tokens=8) for i, prompt in enumerate(PROMPTS)]
    crowd = smollm2_engine.start(max_num_batched_tokens=64).generate([*others[:16], seeded()])["subject"]
    assert (crowd.token_ids, crowd.logprobs) == (alone.token_ids, alone.logprobs)

    tight = smollm2_engine.start(num_blocks=-(-(len(PROMPT) + 24) // 16))
    preempted = tight.generate([make_request("other", PROMPTS[1][:10], max_tokens=60), seeded()])["subject"]
    assert "subject" in tight.preempted
    assert (preempted.token_ids, preempted.logprobs) == (alone.token_ids, alone.logprobs)


def test_resumed_in_the_middle(smollm2_engine: Engine) -> None:
    expected = smollm2_engine.start().generate([seeded()])["subject"].token_ids
    run = smollm2_engine.start()
    request = make_request("subject", PROMPT, expected[:11], temperature=1.0, seed=99, max_tokens=24)
    assert run.generate([request])["subject"].token_ids == expected[11:]
