"""Packing at bake: exact where the source is quantized already, rounded once elsewhere, refused with one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize

from appliance.bake import bake, verify
from appliance.bake.block_codes import READERS, read_codes
from appliance.baked_model import BakedModel
from appliance.errors import BakeError
from engine.kernels.packed import PackedTensor, unpack
from engine.models.loader import MappedWeights
from tests.tiny_models import make_tiny_model

BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "Q4_K": 144}


@pytest.mark.parametrize("type_name", sorted(READERS))
def test_codes_are_the_blocks_values(type_name: str) -> None:
    rng = np.random.default_rng(3)
    blocks = rng.integers(0, 256, (5, 6, BLOCK_BYTES[type_name]), dtype=np.uint8)
    num_halves = {"Q8_0": 1, "Q4_0": 1, "Q4_1": 2, "Q4_K": 2}[type_name]
    factors = rng.uniform(0.01, 0.1, (5, 6, num_halves)).astype("<f2")
    blocks[..., : 2 * num_halves] = factors.view(np.uint8)
    rows = blocks.reshape(5, -1)

    codes = read_codes(rows, type_name)
    scales = np.repeat(codes.scales.astype(np.float32), 32, axis=1)
    minima = 0 if codes.minima is None else np.repeat(codes.minima.astype(np.float32), 32, axis=1)
    values = scales * codes.codes + minima

    expected = dequantize(rows, GGMLQuantizationType[type_name])
    if type_name == "Q4_K":  # the product of two factors is rounded to half precision
        np.testing.assert_allclose(values, expected, rtol=0, atol=np.abs(expected).max() * 2**-9)
    else:
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)
    assert codes.format != "int4" or (codes.codes.min() >= 0 and codes.codes.max() <= 15)


@pytest.fixture(scope="module")
def default_as_int4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bake("default", tmp_path_factory.mktemp("int4") / "model", quantization="int4")


def test_a_quantized_source_keeps_its_values(default_as_int4: Path, smollm2: Path) -> None:
    packed, plain = (MappedWeights(path / "model.safetensors") for path in (default_as_int4, smollm2))
    for name in ("embed_tokens.weight", "layers.0.qkv_proj.weight", "layers.7.gate_up_proj.weight"):
        tensor = packed.get(name)
        assert isinstance(tensor, PackedTensor)
        assert torch.allclose(unpack(tensor), plain.vector(name), rtol=0, atol=1e-6), name
    assert torch.equal(packed.vector("norm.weight"), plain.vector("norm.weight"))


def test_the_folder_says_what_it_is(default_as_int4: Path) -> None:
    weights = BakedModel(default_as_int4).manifest["weights"]
    assert weights["quantization"] == "int4"
    assert weights["num_parameters"] == 134_515_008
    assert verify(default_as_int4) == []
    assert (default_as_int4 / "model.safetensors").stat().st_size < 100_000_000


@pytest.mark.parametrize(
    ("quantization", "error"), [("int8", 0.006), ("int4", 0.08), ("int4_a8", 0.08), ("bfloat16", 0.005)]
)
@pytest.mark.parametrize("tiny", ["llama", "qwen2"])
def test_floats_are_rounded_once(tmp_path: Path, tiny: str, quantization: str, error: float) -> None:
    source = make_tiny_model(tiny, tmp_path).source
    plain, packed = (
        MappedWeights(bake(str(source), tmp_path / kind, quantization=kind) / "model.safetensors")
        for kind in ("none", quantization)
    )
    name = "layers.0.down_proj.weight"
    tensor, truth = packed.get(name), plain.vector(name).float()
    assert isinstance(tensor, PackedTensor)
    assert (unpack(tensor) - truth).abs().max() <= error * truth.abs().max()


def test_packed_baking_is_reproducible(tmp_path: Path) -> None:
    source = make_tiny_model("qwen3", tmp_path).source
    first, second = (bake(str(source), tmp_path / name, name="m", quantization="int4") for name in ("a", "b"))
    assert json.loads((first / "manifest.json").read_text()) == json.loads((second / "manifest.json").read_text())


def test_an_unknown_quantization_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BakeError, match="quantization int3 is not supported; supported are auto, none, bfloat16, int8, int4"
    ):
        bake(str(make_tiny_model("llama", tmp_path).source), tmp_path / "out", quantization="int3")
    assert not (tmp_path / "out").exists()
