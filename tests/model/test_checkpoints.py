"""Quantized checkpoints from bake to logits: codes are kept, and the engine computes with what they mean."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from appliance.bake import bake
from appliance.baked_model import BakedModel
from engine.kernels.packed import PackedTensor, unpack
from engine.models.loader import MappedWeights
from tests.model.driver import Engine, make_prompts, make_request
from tests.model.truth import relative_error, true_logits
from tests.quantized_models import KINDS, QuantizedModel, make_quantized_model
from tests.tiny_models import VOCAB_SIZE

PROMPT = make_prompts(1, VOCAB_SIZE, seed=4, longest=40)[0]
EXACT: dict[str, Any] = {"kv_cache_dtype": "float32"}  # it is the weights whose error is measured
FORMATS = {
    "awq": "int4",
    "gptq": "int4",
    "gptq-asymmetric": "int4",
    "gptq-v2": "int4",
    "gptq-8-bits": "int8",
    "gptq-8-bits-asymmetric": None,
    "gptq-act-order": None,
    "fp8": "fp8",
    "fp8-blocks": "fp8_block",
    "compressed-fp8": "fp8",
    "compressed-int8": "int8",
    "compressed-w4a16": "int4",
    "compressed-w4a16-asymmetric": "int4",
    "compressed-w4a16-int8-zeros": "int4",
    "compressed-w8a16": "int8",
}


class Baked(NamedTuple):
    """A quantized source and what was baked of it."""

    model: QuantizedModel
    folder: Path


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Baked]:
    def make(kind: str) -> Baked:
        folder = tmp_path_factory.mktemp(kind)
        model = make_quantized_model(KINDS[kind], folder / "source")
        return Baked(model, bake(str(model.source), folder / "baked"))

    return cache(make)


def tensor_of(folder: Path, name: str) -> Tensor | PackedTensor:
    return MappedWeights(folder / "model.safetensors").get(name)


def values_of(folder: Path, name: str) -> Tensor:
    tensor = tensor_of(folder, name)
    return unpack(tensor) if isinstance(tensor, PackedTensor) else tensor


@pytest.mark.parametrize("kind", KINDS)
def test_each_layer_keeps_what_its_codes_mean(kind: str, baked: Callable[[str], Baked]) -> None:
    model, folder = baked(kind)
    assert FORMATS.keys() == KINDS.keys()
    for name, parts in {
        "qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
        "down_proj": ("mlp.down_proj",),
    }.items():
        expected = torch.cat([model.weights[f"model.layers.1.{part}.weight"] for part in parts])
        found = values_of(folder, f"layers.1.{name}.weight")
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-4)  # scale times zero is rounded to half precision
    tensor = tensor_of(folder, "layers.1.down_proj.weight")
    assert (tensor.format if isinstance(tensor, PackedTensor) else None) == FORMATS[kind]
    weights = BakedModel(folder).manifest["weights"]
    assert weights["quantization"] == (FORMATS[kind] and FORMATS[kind].removesuffix("_block"))
    assert ("notes" in weights) == (FORMATS[kind] in (None, "fp8", "fp8_block"))
    assert "quantization_config" not in BakedModel(folder).config


def tolerance(kind: str, implementation: str) -> float:
    """Of logits, relative to their range."""
    if implementation == "cpu" and kind in ("fp8", "fp8-blocks", "compressed-fp8"):
        return 2e-2  # the weights become bfloat16
    if kind in ("awq", "gptq-asymmetric", "gptq-v2") or kind.startswith("compressed-w4a16-"):
        return 3e-3  # scale times zero is rounded to half precision
    return 2e-4


@pytest.mark.parametrize("implementation", ["reference", "cpu"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_floats(kind: str, implementation: str, baked: Callable[[str], Baked]) -> None:
    model, folder = baked(kind)
    found = Engine(folder, implementation, max_model_len=64, **EXACT).logits(PROMPT)
    assert relative_error(found, true_logits(model.truth, PROMPT)) < tolerance(kind, implementation)


def test_what_cannot_be_kept_is_said(baked: Callable[[str], Baked]) -> None:
    def notes(kind: str) -> list[str]:
        return list(BakedModel(baked(kind).folder).manifest["weights"]["notes"])

    scattered = "the groups that share a scale are scattered over the input channels (act-order)"
    assert notes("gptq-act-order") == [f"8 matrices are written as float32: {scattered}"]
    assert notes("fp8") == [
        "float8 codes are kept for a GPU; a CPU computes with them as bfloat16, made when the engine starts"
    ]
    assert notes("gptq-8-bits-asymmetric") == [
        "8 matrices are written as float32: eight bits with a zero point have no kernel"
    ]


def test_layers_that_the_checkpoint_leaves_alone_stay_floats(tmp_path: Path) -> None:
    model = make_quantized_model(KINDS["awq"], tmp_path / "source", ignore=("lm_head", "1.mlp.up_proj", "0.o_proj"))
    folder = bake(str(model.source), tmp_path / "baked")
    assert isinstance(tensor_of(folder, "layers.0.gate_up_proj.weight"), PackedTensor)
    for name in ("lm_head", "layers.1.gate_up_proj"):
        assert isinstance(tensor_of(folder, f"{name}.weight"), Tensor)
    (note,) = BakedModel(folder).manifest["weights"]["notes"]
    assert note.startswith("1 matrix is written as float32: only some of the layers that are fused into one")
    found = Engine(folder, "cpu", max_model_len=64, **EXACT).logits(PROMPT)
    assert relative_error(found, true_logits(model.truth, PROMPT)) < 2e-3


def test_a_quantized_head_is_kept_too(tmp_path: Path) -> None:
    model = make_quantized_model(KINDS["gptq"], tmp_path / "source", ignore=())
    folder = bake(str(model.source), tmp_path / "baked")
    assert isinstance(tensor_of(folder, "lm_head.weight"), PackedTensor)
    found = Engine(folder, "cpu", max_model_len=64, **EXACT).logits(PROMPT)
    assert relative_error(found, true_logits(model.truth, PROMPT)) < 2e-4


@pytest.mark.parametrize(("quantization", "error"), [("none", 1e-4), ("bfloat16", 2e-2), ("int8", 2e-2)])
def test_a_quantized_checkpoint_can_be_baked_as_something_else(
    tmp_path: Path, quantization: str, error: float, baked: Callable[[str], Baked]
) -> None:
    model = baked("fp8-blocks").model
    folder = bake(str(model.source), tmp_path / "baked", quantization=quantization)
    assert isinstance(tensor_of(folder, "layers.0.o_proj.weight"), Tensor if quantization == "none" else PackedTensor)
    found = Engine(folder, "cpu", max_model_len=64, **EXACT).logits(PROMPT)
    assert relative_error(found, true_logits(model.truth, PROMPT)) < error


def test_a_quantized_model_generates_alone_as_in_a_crowd(baked: Callable[[str], Baked]) -> None:
    engine = Engine(baked("awq").folder, "cpu", max_model_len=64)
    subject = make_request("subject", PROMPT[:12], max_tokens=16)
    alone = engine.start().generate([subject])["subject"]
    others = [make_request(str(index), PROMPT[index : index + 9], max_tokens=12) for index in range(5)]
    assert engine.start().generate([*others, subject])["subject"].token_ids == alone.token_ids
