"""Same request, same bits: alone or in company, cold or warm cache, chunked, preempted, resumed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.messages import RequestOutput
from tests.model.driver import Engine, make_prompts, make_request
from tests.tiny_models import VOCAB_SIZE

MODELS = ("llama", "mistral-window", "qwen3")
KINDS = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "seed": 1234},
    "shaped": {
        "temperature": 0.8,
        "seed": -5,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
    },
}
PROMPTS = make_prompts(17, VOCAB_SIZE, seed=11, longest=60)
PROMPT = PROMPTS[0] * 3 + PROMPTS[1][:40]
pytestmark = [pytest.mark.parametrize("name", MODELS), pytest.mark.parametrize("kind", KINDS)]


@pytest.fixture
def engine(name: str, tiny_engine: Callable[[str], Engine]) -> Engine:
    return tiny_engine(name)


def subject(kind: str, **more: object) -> dict[str, object]:
    return {"logprobs": 2, "max_tokens": 40} | KINDS[kind] | more


def alone(engine: Engine, kind: str) -> RequestOutput:
    run = engine.start(enable_prefix_caching=False)
    return run.generate([make_request("subject", PROMPT, **subject(kind))])["subject"]


def assert_same(found: RequestOutput, expected: RequestOutput) -> None:
    assert found.token_ids == expected.token_ids
    assert found.logprobs == expected.logprobs, "ids agree, but a logprob differs in some bit"


def test_alone_twice(engine: Engine, kind: str) -> None:
    assert_same(alone(engine, kind), alone(engine, kind))


def test_among_16_others(engine: Engine, kind: str) -> None:
    requests = [make_request(str(i), p, temperature=1.0, seed=i, max_tokens=50) for i, p in enumerate(PROMPTS[1:])]
    requests.insert(9, make_request("subject", PROMPT, **subject(kind)))
    outputs = engine.start(max_num_batched_tokens=64, max_num_seqs=32).generate(requests)
    assert_same(outputs["subject"], alone(engine, kind))


@pytest.mark.parametrize("budget", [1, 5, 16, 33])
def test_chunked(engine: Engine, kind: str, budget: int) -> None:
    run = engine.start(max_num_batched_tokens=budget, max_num_seqs=1)
    found = run.generate([make_request("subject", PROMPT, **subject(kind))])["subject"]
    assert_same(found, alone(engine, kind))


def test_warm_cache(engine: Engine, kind: str) -> None:
    run = engine.start()
    run.generate([make_request("warms", PROMPT, **subject(kind))])
    found = run.generate([make_request("subject", PROMPT, **subject(kind))])["subject"]
    assert (found.num_cached_tokens or 0) > len(PROMPT) // 2
    assert_same(found, alone(engine, kind))


@pytest.mark.parametrize("caches", [True, False], ids=["caching", "no-caching"])
def test_preempted(engine: Engine, kind: str, caches: bool) -> None:
    # Enough for the subject at its end, alone; the other came first and grows.
    needed = -(-(len(PROMPT) + 40) // 16)
    run = engine.start(num_blocks=needed, enable_prefix_caching=caches)
    other = make_request("other", PROMPTS[1][:5], max_tokens=120)
    outputs = run.generate([other, make_request("subject", PROMPT, **subject(kind))])
    assert "subject" in run.preempted
    assert_same(outputs["subject"], alone(engine, kind))


def test_resumed_from_every_position(engine: Engine, kind: str) -> None:
    expected = alone(engine, kind)
    assert expected.logprobs is not None
    run = engine.start(max_num_seqs=4)
    requests = [
        make_request(str(done), PROMPT, resumed=expected.token_ids[:done], **subject(kind)) for done in range(40)
    ]
    outputs = run.generate(requests)
    for done in range(40):
        assert outputs[str(done)].token_ids == expected.token_ids[done:]
        assert outputs[str(done)].logprobs == expected.logprobs[done:]
