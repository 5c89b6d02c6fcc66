"""Same request, same bits, with drafts and without: ids and logprobs, whatever shapes, stops or preempts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine.config import SpeculationConfig
from engine.messages import GenerateRequest, RequestOutput
from engine.request import Request
from engine.speculation.speculator import Speculator
from tests.model.driver import Engine, Run, make_prompts, make_request
from tests.tiny_models import VOCAB_SIZE

CONFIG = SpeculationConfig(num_speculative_tokens=5, prompt_lookup_min=1, adaptive=False)
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "seed": 1234},
    "shaped": {"temperature": 0.8, "seed": -5, "top_k": 40, "top_p": 0.95, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "seeded penalties": {"temperature": 1.0, "seed": 9, "repetition_penalty": 1.1, "frequency_penalty": 0.5},
    "masks": {
        "temperature": 0.9,
        "seed": 3,
        "min_tokens": 17,
        "stop_token_ids": [1, 2, 3],
        "logit_bias": {1: 4.0, 9: 3.0, 8: 3.0},
        "bad_words_token_ids": [[9, 8], [8, 9], [40], [1, 9]],
    },
    "eos": {"temperature": 1.0, "seed": 8, "ignore_eos": False, "min_tokens": 3, "logit_bias": {257: 4.0}},
}
PROMPTS = make_prompts(6, VOCAB_SIZE, seed=5, longest=40)
PROMPT = (PROMPTS[0] + PROMPTS[1])[:30] * 3
pytestmark = pytest.mark.parametrize("name", ["llama", "mistral-window"])


class Oracle(Speculator):
    """Knows what a run without drafts produced; every `spoilt`-th output token it gets wrong (0: none)."""

    def __init__(self, expected: dict[str, list[int]], spoilt: int) -> None:
        super().__init__(CONFIG)
        self._expected = expected
        self._spoilt = spoilt

    def propose(self, request: Request, max_tokens: int, relative_cost: float) -> list[int]:
        first = request.num_output_tokens
        known = self._expected[request.request_id][first : first + min(max_tokens, CONFIG.num_speculative_tokens)]
        return (
            [(token_id + self._is_spoilt(first + index)) % VOCAB_SIZE for index, token_id in enumerate(known)]
            if max_tokens > 0
            else []
        )

    def _is_spoilt(self, number: int) -> bool:
        return self._spoilt > 0 and number % self._spoilt == self._spoilt - 1


@pytest.fixture
def engine(name: str, tiny_engine: Callable[[str], Engine]) -> Engine:
    return tiny_engine(name)


def subject(kind: str, request_id: str = "subject", prompt: list[int] = PROMPT, **more: Any) -> GenerateRequest:
    return make_request(request_id, prompt, **({"logprobs": 2, "max_tokens": 40} | KINDS[kind] | more))


def without(engine: Engine, requests: Sequence[GenerateRequest]) -> dict[str, RequestOutput]:
    return engine.start(enable_prefix_caching=False).generate(requests)


def start(engine: Engine, expected: dict[str, RequestOutput] | None = None, spoilt: int = 0, **config: Any) -> Run:
    """A run with drafts: by lookup, or, where it is known what will come, by that."""
    run = engine.start(speculation=CONFIG, **config)
    drafts = run._core._scheduler._drafts
    assert drafts is not None
    if expected is not None:
        drafts.speculator = Oracle({key: output.token_ids for key, output in expected.items()}, spoilt)
    return run


def counted(run: Run, what: str) -> float:
    value = run._core.metrics._registry.collectors.get_sample_value(
        f"vllm:spec_decode_num_{what}_total", {"model_name": "model", "engine": "0"}
    )
    assert value is not None
    return value


def assert_same(found: dict[str, RequestOutput], expected: dict[str, RequestOutput]) -> None:
    for request_id, output in expected.items():
        assert found[request_id].token_ids == output.token_ids
        assert found[request_id].logprobs == output.logprobs, "ids agree, but a logprob differs in some bit"
        assert found[request_id].finish_reason == output.finish_reason
        assert found[request_id].stop_reason == output.stop_reason


@pytest.mark.parametrize("kind", KINDS)
def test_lookup(engine: Engine, kind: str) -> None:
    expected = without(engine, [subject(kind)])
    run = start(engine)
    assert_same(run.generate([subject(kind)]), expected)
    # Penalties see to it that there is little to look up.
    assert counted(run, "drafts") > 0 or "penalties" in kind


@pytest.mark.parametrize("spoilt", [0, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_right_and_wrong_drafts(engine: Engine, kind: str, spoilt: int) -> None:
    expected = without(engine, [subject(kind)])
    run = start(engine, expected, spoilt)
    assert_same(run.generate([subject(kind)]), expected)
    assert 0 < counted(run, "accepted_tokens") <= counted(run, "draft_tokens")
    assert spoilt or counted(run, "accepted_tokens") == counted(run, "draft_tokens")


@pytest.mark.parametrize("place", [1, 2, 5, 6, 7, 11])
def test_a_stop_amid_a_draft(engine: Engine, place: int) -> None:
    whole = without(engine, [subject("seeded")])["subject"].token_ids
    stopping = subject("seeded", stop_token_ids=[whole[place]])
    expected = without(engine, [stopping])
    run = start(engine, {"subject": RequestOutput(request_id="subject", token_ids=whole)})
    found = run.generate([stopping])
    assert_same(found, expected)
    assert found["subject"].finish_reason == "stop"


@pytest.mark.parametrize("spoilt", [0, 3])
def test_among_others_and_in_tight_budgets(engine: Engine, spoilt: int) -> None:
    requests = [
        subject(kind, kind, PROMPTS[index % len(PROMPTS)] + PROMPT[: 9 * index]) for index, kind in enumerate(KINDS)
    ]
    expected = without(engine, requests)
    for budget in (9, 40):
        assert_same(start(engine, expected, spoilt, max_num_batched_tokens=budget).generate(requests), expected)


@pytest.mark.parametrize("caches", [True, False], ids=["caching", "no-caching"])
@pytest.mark.parametrize("kind", ["greedy", "seeded penalties"])
def test_preempted(engine: Engine, kind: str, caches: bool) -> None:
    requests = [make_request("other", PROMPTS[1][:5], max_tokens=120, logprobs=0), subject(kind)]
    expected = without(engine, requests)
    needed = -(-(len(PROMPT) + 40) // 16)
    run = start(engine, expected, 4, num_blocks=needed, enable_prefix_caching=caches)
    assert_same(run.generate(requests), expected)
    assert "subject" in run.preempted


def test_what_was_guessed_wrong_is_not_in_the_cache(engine: Engine) -> None:
    expected = without(engine, [subject("seeded")])
    run = start(engine, expected, 3)
    assert_same(run.generate([subject("seeded")]), expected)
    longer = subject("greedy", "longer", PROMPT + expected["subject"].token_ids)
    again = without(engine, [longer])
    run._core._scheduler._drafts.speculator = Oracle({"longer": again["longer"].token_ids}, 5)  # type: ignore[union-attr]
    found = run.generate([longer])
    assert (found["longer"].num_cached_tokens or 0) >= 112  # of 130 tokens
    assert_same(found, again)


def test_resumed(engine: Engine) -> None:
    expected = without(engine, [subject("seeded penalties")])["subject"]
    run = start(engine)
    for done in (1, 6, 17, 39):
        request = make_request(
            "subject", PROMPT, resumed=expected.token_ids[:done], logprobs=2, max_tokens=40, **KINDS["seeded penalties"]
        )
        output = run.generate([request])["subject"]
        assert output.token_ids == expected.token_ids[done:]
        assert output.logprobs == (expected.logprobs or [])[done:]
