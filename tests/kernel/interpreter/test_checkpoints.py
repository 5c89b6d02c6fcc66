"""The whole engine on Triton kernels with quantized weights: checkpoints, and folders that were packed for a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from appliance.bake import bake
from engine.kernels.chip import CHIPS, assume_chip
from engine.messages import RequestOutput
from tests.model.driver import Engine, make_prompts, make_request
from tests.model.truth import relative_error, true_logits
from tests.quantized_models import KINDS, QuantizedModel, make_quantized_model
from tests.tiny_models import VOCAB_SIZE

PROMPTS = make_prompts(3, VOCAB_SIZE, seed=5, longest=20)
Make = Callable[[str], QuantizedModel]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Make:
    transformers.utils.logging.disable_progress_bar()
    return cache(lambda kind: make_quantized_model(KINDS[kind], tmp_path_factory.mktemp(kind) / "source"))


def load(source: Path, folder: Path, implementation: str, quantization: str = "auto") -> Engine:
    out = folder / quantization
    if not out.exists():
        bake(str(source), out, quantization=quantization)
    return Engine(out, implementation, max_model_len=64, num_gpu_blocks_override=40, max_num_batched_tokens=24)


def generate(engine: Engine) -> dict[str, list[int]]:
    requests = [make_request(str(index), prompt, max_tokens=5) for index, prompt in enumerate(PROMPTS)]
    found: dict[str, RequestOutput] = engine.start().generate(requests)
    return {name: output.token_ids for name, output in found.items()}


@pytest.mark.parametrize("kind", ["awq", "gptq-8-bits", "compressed-w4a16-asymmetric"])
def test_integer_codes_yield_the_tokens_of_the_floats(kind: str, model: Make, tmp_path: Path) -> None:
    """Zeros are found again as the integers that they are, so nothing at all is rounded."""
    engine = load(model(kind).source, tmp_path, "cuda")
    assert relative_error(engine.logits(PROMPTS[0]), true_logits(model(kind).truth, PROMPTS[0])) < 1e-5
    assert generate(engine) == generate(load(model(kind).source, tmp_path, "reference", "none"))


@pytest.mark.parametrize("kind", ["fp8-blocks", "compressed-fp8"])
def test_float8_is_multiplied_as_float8(kind: str, model: Make, tmp_path: Path) -> None:
    engine = load(model(kind).source, tmp_path, "cuda")
    expected = true_logits(model(kind).truth, PROMPTS[0])
    # Activations have three bits of mantissa here, and these weights are far sharper than trained ones.
    assert relative_error(engine.logits(PROMPTS[0]), expected) < 0.15
    assert all(len(token_ids) == 5 for token_ids in generate(engine).values())


def test_a_gpu_that_does_not_multiply_float8_gets_floats(model: Make, tmp_path: Path) -> None:
    with assume_chip(CHIPS[80]):
        engine = load(model("fp8-blocks").source, tmp_path, "cuda")
        found = engine.logits(PROMPTS[0])
    assert relative_error(found, true_logits(model("fp8-blocks").truth, PROMPTS[0])) < 1e-5


@pytest.mark.parametrize(
    ("quantization", "implementation"), [("int4", "cuda"), ("int8", "cuda"), ("int4", "cuda-invariant")]
)
def test_a_folder_that_was_packed_for_a_cpu_serves(
    quantization: str, implementation: str, model: Make, tmp_path: Path
) -> None:
    def logits(of: str) -> Tensor:
        return load(model("fp8").source, tmp_path, of, quantization).logits(PROMPTS[0])

    assert relative_error(logits(implementation), logits("reference")) < 1e-5


def test_batch_invariant_mode_gives_a_token_the_same_bits_in_any_batch(model: Make, tmp_path: Path) -> None:
    """Not tried with float8: numpy, which interprets its products, sums a row by where it stands."""
    engine = load(model("awq").source, tmp_path, "cuda-invariant")
    whole = engine.logits(PROMPTS[0])
    assert torch.equal(engine.logits(PROMPTS[0], range(1, len(PROMPTS[0]))), whole)
