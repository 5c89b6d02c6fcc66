"""The whole engine, scheduler to sampler, on Triton kernels: the tokens of the reference, and in batch-invariant mode
the same bits alone and in a crowd."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import transformers

from engine.messages import RequestOutput
from tests.model.driver import Engine, make_prompts, make_request
from tests.tiny_models import VOCAB_SIZE, TinyModel, make_tiny_model

SHAPED = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.1}
PROMPTS = make_prompts(4, VOCAB_SIZE, seed=3, longest=30)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return cache(lambda name: make_tiny_model(name, tmp_path_factory.mktemp(name)))


def serve(baked: TinyModel, implementation: str) -> dict[str, RequestOutput]:
    """Three requests, greedy and drawn, in mixed and chunked steps over few blocks."""
    engine = Engine(baked.baked, implementation, num_gpu_blocks_override=40, max_num_batched_tokens=24)
    kinds = [{"logprobs": 2}, {"temperature": 1.0, "seed": 5}, SHAPED]
    requests = [
        make_request(str(index), prompt, max_tokens=6, **kind)
        for index, (prompt, kind) in enumerate(zip(PROMPTS, kinds, strict=False))
    ]
    return engine.start().generate(requests)


@pytest.mark.parametrize("name", ["llama", "mistral-window", "qwen2", "qwen3"])
def test_the_engine_yields_the_tokens_of_the_reference(name: str, tiny: Callable[[str], TinyModel]) -> None:
    expected = serve(tiny(name), "reference")
    found = serve(tiny(name), "cuda")
    assert {i: output.token_ids for i, output in found.items()} == {i: o.token_ids for i, o in expected.items()}


def test_batch_invariant_mode_gives_the_same_bits_alone_and_in_a_crowd(tiny: Callable[[str], TinyModel]) -> None:
    engine = Engine(tiny("qwen3").baked, "cuda-invariant", num_gpu_blocks_override=60, max_num_batched_tokens=24)
    subject = make_request("subject", PROMPTS[0], max_tokens=6, temperature=1.0, seed=7, logprobs=3)
    alone = engine.start(enable_prefix_caching=False, max_num_batched_tokens=256).generate([subject])["subject"]
    others = [make_request(str(index), prompt, max_tokens=8) for index, prompt in enumerate(PROMPTS[1:])]
    crowd = engine.start().generate([*others, subject])["subject"]
    assert (crowd.token_ids, crowd.logprobs) == (alone.token_ids, alone.logprobs)
