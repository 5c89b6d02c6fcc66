"""Quantized checkpoints that are refused by name, before anything is written, and damaged ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from appliance.bake import bake
from appliance.bake.checkpoints.bits import E4M3, unpack_words
from appliance.errors import BakeError
from tests.quantized_models import KINDS, compressed, make_quantized_model, pack_words
from tests.unit.bake import tiny_sources as tiny
from tests.unit.bake.test_damage import assert_refused

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
SPARSE = compressed("pack-quantized", INT4) | {"sparsity_config": {"format": "sparse-24-bitmask"}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    **{
        method: (
            {"quant_method": method},
            f"quantization {method} is not supported; supported are awq .*, gptq .*, fp8",
        )
        for method in (
            "bitsandbytes",
            "gguf",
            "hqq",
            "eetq",
            "aqlm",
            "quanto",
            "torchao",
            "mxfp4",
            "modelopt",
            "bitnet",
        )
    },
    "bitsandbytes of old": ({"load_in_4bit": True}, "quantization bitsandbytes is not supported"),
    "no name": ({"bits": 4}, "quantization of no named method is not supported"),
    "awq gemv": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "awq with version gemv"),
    "awq of 3 bits": ({"quant_method": "awq", "bits": 3}, "awq with 3 bits"),
    "gptq marlin": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format marlin"),
    "gptq marlin of old": ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "checkpoint_format marlin"),
    "gptq of 2 bits": ({"quant_method": "gptq", "bits": 2}, "gptq with 2 bits"),
    "gptq without bits": ({"quant_method": "gptq"}, "gptq without its bits"),
    "fp8 e5m2": ({"quant_method": "fp8", "fmt": "e5m2"}, "fp8 with fmt e5m2"),
    "nvfp4": (compressed("nvfp4-pack-quantized", INT4), "compressed-tensors with format nvfp4-pack-quantized"),
    "marlin 24": (compressed("marlin-24", INT4), "compressed-tensors with format marlin-24"),
    "sparse": (SPARSE, "compressed-tensors with sparsity sparse-24-bitmask"),
    "2 bits": (compressed("pack-quantized", INT4 | {"num_bits": 2}), "compressed-tensors with int weights of 2 bits"),
    "float4": (
        compressed("mixed-precision", INT4 | {"type": "float"}),
        "compressed-tensors with float weights of 4 bits",
    ),
    "not compressed": (compressed("dense", INT4), "compressed-tensors with format dense"),
    "frozen": (compressed("int-quantized", INT4) | {"quantization_status": "frozen"}, "quantization_status frozen"),
    "a word": ("awq", "quantization_config must be an object, it is 'awq'"),
    "block": ({"quant_method": "fp8", "weight_block_size": 128}, "must be two positive integers, it is 128"),
}


@pytest.mark.parametrize(("found", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, found: Any, message: str) -> None:
    tiny.write_folder(tmp_path / "model", tiny.config(quantization_config=found))
    assert_refused(tmp_path / "model", tmp_path, message)


Damage = Callable[[dict[str, Tensor]], None]
Q = "model.layers.0.self_attn.q_proj."


def _cut(name: str, *, rows: int) -> Damage:
    def damage(tensors: dict[str, Tensor]) -> None:
        tensors[Q + name] = tensors[Q + name][:rows].contiguous()

    return damage


def _drop(name: str) -> Damage:
    def damage(tensors: dict[str, Tensor]) -> None:
        del tensors[Q + name]

    return damage


def _set(name: str, value: Tensor) -> Damage:
    return lambda tensors: tensors.update({Q + name: value})


def _first(name: str, value: float) -> Damage:
    def damage(tensors: dict[str, Tensor]) -> None:
        tensors[Q + name].view(-1)[0] = value

    return damage


DAMAGED: dict[str, tuple[str, Damage, str]] = {
    "awq cut": ("awq", _cut("qweight", rows=32), r"q_proj.weight has shape \[64, 32\], the config asks for \[64, 64\]"),
    "awq without zeros": ("awq", _drop("qzeros"), "q_proj.qzeros is missing"),
    "awq without scales": ("awq", _drop("scales"), "q_proj.scales is missing"),
    "awq zeros cut": ("gptq", _cut("qzeros", rows=1), r"q_proj.qzeros is I32 \[1, 8\], gptq needs I32 \[2, 8\]"),
    "awq scale of infinity": ("awq", _first("scales", float("inf")), "q_proj.scales holds NaN or infinite values"),
    "gptq floats": ("gptq", _set("qweight", torch.zeros(8, 64)), "q_proj.qweight is F32 .*, gptq needs I32"),
    "gptq group": ("gptq", _first("g_idx", 9), r"q_proj.g_idx names groups that there are not \(2 groups\)"),
    "gptq with a bias": ("gptq", _first("bias", 1.0), "tensor model.layers.0.self_attn.q_proj.bias is not part of"),
    "fp8 without scales": ("fp8", _drop("weight_scale"), "q_proj.weight_scale is missing"),
    "fp8 scales": (
        "fp8",
        _set("weight_scale", torch.ones(3)),
        r"the scales of .*q_proj \[3\] do not fit a weight of 64",
    ),
    "fp8 NaN": ("fp8", _set("weight", torch.full((64, 64), float("nan")).to(torch.float8_e4m3fn)), "holds NaN"),
    "compressed shape": (
        "compressed-w4a16",
        _set("weight_shape", torch.tensor([64, 96])),
        r"weight_packed \[64, 8\] does not hold 64 x 96 weights|has shape \[64, 96\]",
    ),
}


@pytest.mark.parametrize(("kind", "damage", "message"), DAMAGED.values(), ids=DAMAGED)
def test_what_is_damaged_is_refused(tmp_path: Path, kind: str, damage: Damage, message: str) -> None:
    source = make_quantized_model(KINDS[kind], tmp_path / "model").source
    tensors = load_file(source / "model.safetensors")
    damage(tensors)
    save_file(tensors, source / "model.safetensors")
    assert_refused(source, tmp_path, message)


def test_a_quantized_checkpoint_without_its_config_is_refused(tmp_path: Path) -> None:
    source = make_quantized_model(KINDS["gptq"], tmp_path / "model").source
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (source / "config.json").write_text(json.dumps(config))
    assert_refused(source, tmp_path)


def test_baking_a_checkpoint_is_reproducible(tmp_path: Path) -> None:
    source = make_quantized_model(KINDS["awq"], tmp_path / "model").source
    first, second = (bake(str(source), tmp_path / name, name="m") for name in ("a", "b"))
    assert (first / "manifest.json").read_bytes() == (second / "manifest.json").read_bytes()


@pytest.mark.parametrize("bits", [4, 8])
def test_words_come_apart_as_they_were_packed(bits: int) -> None:
    fields = torch.randint(0, 2**bits, (5, 64))
    np.testing.assert_array_equal(unpack_words(pack_words(fields, bits).numpy(), bits), fields.numpy())


def test_float8_values_are_those_of_torch() -> None:
    expected = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(E4M3, expected)


def test_a_float8_tensor_in_a_plain_model_is_refused(tmp_path: Path) -> None:
    source = make_quantized_model(KINDS["fp8"], tmp_path / "model").source
    config = json.loads((source / "config.json").read_text()) | {"quantization_config": None}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(BakeError, match=r"dtype F8_E4M3, supported are BF16, F16, F32"):
        bake(str(source), tmp_path / "out")
