"""Same request, same bits in every precision that a CPU is shipped with, at the default model's size."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from engine.kernels.native.targets import is_built
from engine.messages import GenerateRequest, RequestOutput
from tests.model.driver import Engine, make_prompts, make_request

PRECISIONS = {  # quantization, then the engine's options
    "shipped": ("shipped", {}),
    "int4": ("int4", {}),
    "int8": ("int8", {}),
    "bfloat16": ("bfloat16", {}),
    "bfloat16-activations": ("bfloat16", {"dtype": "bfloat16"}),
    "kv-float32": ("shipped", {"kv_cache_dtype": "float32"}),
    "kv-int8": ("shipped", {"kv_cache_dtype": "int8"}),
}
PROMPTS = make_prompts(17, 49152, seed=5, longest=24)
PROMPT = PROMPTS[0] * 2 + PROMPTS[1]
LENGTH = 12
pytestmark = [
    pytest.mark.exact,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_built(), reason="the C++ library is not built: python -m engine.kernels.native.build"),
    pytest.mark.parametrize("precision", PRECISIONS),
]


@pytest.fixture(scope="module")
def engine_of(baked_as: Callable[[str], Path]) -> Callable[[str], Engine]:
    @cache
    def load(precision: str) -> Engine:
        quantization, options = PRECISIONS[precision]
        return Engine(
            baked_as(quantization), "cpu", num_threads=2, max_model_len=512, num_gpu_blocks_override=96, **options
        )

    return load


@pytest.fixture
def engine(precision: str, engine_of: Callable[[str], Engine]) -> Engine:
    return engine_of(precision)


def subject(resumed: list[int] | None = None) -> GenerateRequest:
    return make_request(
        "subject", PROMPT, resumed or [], temperature=0.8, seed=99, top_p=0.95, max_tokens=LENGTH, logprobs=2
    )


def alone(engine: Engine) -> RequestOutput:
    return engine.start(enable_prefix_caching=False).generate([subject()])["subject"]


def assert_same(found: RequestOutput, expected: RequestOutput) -> None:
    assert found.token_ids == expected.token_ids
    assert found.logprobs == expected.logprobs, "ids agree, but a logprob differs in some bit"


def test_among_16_others_and_chunked(engine: Engine) -> None:
    others = [make_request(str(i), p, temperature=1.0, seed=i, max_tokens=LENGTH) for i, p in enumerate(PROMPTS[1:])]
    run = engine.start(max_num_batched_tokens=48, max_num_seqs=32)
    assert_same(run.generate([*others[:9], subject(), *others[9:]])["subject"], alone(engine))


@pytest.mark.parametrize("budget", [5, 33])
def test_chunked(engine: Engine, budget: int) -> None:
    run = engine.start(max_num_batched_tokens=budget, enable_prefix_caching=False)
    assert_same(run.generate([subject()])["subject"], alone(engine))


def test_warm_cache(engine: Engine) -> None:
    run = engine.start()
    run.generate([subject()])
    found = run.generate([subject()])["subject"]
    assert found.num_cached_tokens
    assert_same(found, alone(engine))


def test_preempted(engine: Engine) -> None:
    run = engine.start(num_blocks=-(-(len(PROMPT) + LENGTH) // 16))
    other = make_request("other", PROMPTS[1][:5], max_tokens=60)
    found = run.generate([other, subject()])["subject"]
    assert "subject" in run.preempted
    assert_same(found, alone(engine))


def test_resumed(engine: Engine) -> None:
    expected = alone(engine)
    assert expected.logprobs is not None
    for done in (1, LENGTH // 2, LENGTH - 1):
        found = engine.start().generate([subject(expected.token_ids[:done])])["subject"]
        assert found.token_ids == expected.token_ids[done:]
        assert found.logprobs == expected.logprobs[done:]


def test_greedy_among_others(engine: Engine) -> None:
    """Greedy rows alone take the head that keeps no logits; beside others they take the one that does."""
    request = make_request("subject", PROMPT, max_tokens=LENGTH)
    by_itself = engine.start(enable_prefix_caching=False).generate([request])["subject"]
    others = [make_request(str(i), p, temperature=1.0, seed=i, max_tokens=LENGTH) for i, p in enumerate(PROMPTS[1:4])]
    among = engine.start(enable_prefix_caching=False).generate([request, *others])["subject"]
    assert among.token_ids == by_itself.token_ids
