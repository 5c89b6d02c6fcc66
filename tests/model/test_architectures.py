"""Each architecture and rope type against transformers: logits, greedy ids, and the same bits however it is cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.model.driver import Engine, make_prompts, make_request
from tests.model.truth import assert_greedy, relative_error, true_logits
from tests.tiny_models import TINY_MODELS, VOCAB_SIZE, TinyModel

PROMPT = make_prompts(1, VOCAB_SIZE, seed=7, longest=1)[0] + list(range(3, 243, 2)) * 2


@pytest.mark.parametrize("name", TINY_MODELS)
def test_logits_equal_transformers(
    name: str, tiny: Callable[[str], TinyModel], tiny_engine: Callable[[str], Engine]
) -> None:
    expected = true_logits(tiny(name).load_truth(), PROMPT)
    assert relative_error(tiny_engine(name).logits(PROMPT), expected) < 1e-5


@pytest.mark.parametrize("name", TINY_MODELS)
def test_chunked_prefill_is_whole_prefill_to_the_bit(name: str, tiny_engine: Callable[[str], Engine]) -> None:
    engine = tiny_engine(name)
    whole = engine.logits(PROMPT)
    for cuts in ([1, 2, 3, 20, 36, 100, 131], [16, 128], range(190, len(PROMPT))):
        assert torch.equal(engine.logits(PROMPT, list(cuts)), whole)
    short = PROMPT[:40]
    assert torch.equal(engine.logits(short, range(1, 40)), whole[:40])


@pytest.mark.parametrize("name", TINY_MODELS)
def test_greedy_ids_equal_transformers(
    name: str, tiny: Callable[[str], TinyModel], tiny_engine: Callable[[str], Engine]
) -> None:
    prompts = make_prompts(20, VOCAB_SIZE, seed=3)
    requests = [make_request(str(index), prompt, max_tokens=64) for index, prompt in enumerate(prompts)]
    outputs = tiny_engine(name).start(max_num_batched_tokens=96, max_num_seqs=12).generate(requests)
    truth = tiny(name).load_truth()
    for index, prompt in enumerate(prompts):
        assert len(outputs[str(index)].token_ids) == 64
        assert_greedy(truth, prompt, outputs[str(index)].token_ids)
