"""Local Hugging Face folders: what ends up in the baked folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from appliance.bake import bake, verify
from appliance.baked_model import BakedModel
from tests.unit.bake import tiny_sources as tiny

VARIANTS = [
    tiny.config(),
    tiny.config(tie_word_embeddings=True),
    tiny.config(attention_bias=True, mlp_bias=True),
    tiny.config("MistralForCausalLM", sliding_window=32),
    tiny.config("Qwen2ForCausalLM"),
    tiny.config("Qwen2ForCausalLM", tie_word_embeddings=True),
    tiny.config("Qwen3ForCausalLM"),
    tiny.config("Qwen3ForCausalLM", attention_bias=True),
]


@pytest.mark.parametrize("settings", VARIANTS, ids=lambda s: s["architectures"][0])
@pytest.mark.parametrize("shards", [1, 3])
def test_weights_are_fused(tmp_path: Path, settings: dict[str, Any], shards: int) -> None:
    tensors = tiny.write_folder(tmp_path / "model", settings, shards=shards)
    baked = bake(str(tmp_path / "model"), tmp_path / "baked")
    tiny.assert_same(tiny.baked_tensors(baked), tiny.fused(tensors, settings))
    assert verify(baked) == []


def test_official_reader_accepts_the_file_and_odd_sizes_are_padded(tmp_path: Path) -> None:
    settings = tiny.config("Qwen3ForCausalLM")
    tensors = tiny.write_folder(tmp_path / "model", settings)
    baked = bake(str(tmp_path / "model"), tmp_path / "baked", dtype="float16")  # q_norm has 32 bytes then
    with safe_open(baked / "model.safetensors", "np") as file:
        names = set(file.keys())
        np.testing.assert_array_equal(
            file.get_tensor("layers.1.q_norm.weight"),
            tensors["model.layers.1.self_attn.q_norm.weight"].astype(np.float16),
        )
    assert any(name.startswith("_padding.") for name in names)


def test_a_tied_model_may_carry_its_head_twice(tmp_path: Path) -> None:
    settings = tiny.config(tie_word_embeddings=True)
    tensors = tiny.weights(tiny.config())
    tiny.write_folder(tmp_path / "model", settings, tensors)
    assert "lm_head.weight" not in tiny.baked_tensors(bake(str(tmp_path / "model"), tmp_path / "baked"))


def test_without_a_word_on_tying_the_missing_head_decides(tmp_path: Path) -> None:
    settings = tiny.config(tie_word_embeddings=True)
    tensors = tiny.weights(settings)
    silent = {key: value for key, value in settings.items() if key != "tie_word_embeddings"}
    tiny.write_folder(tmp_path / "model", silent, tensors)
    baked = BakedModel(bake(str(tmp_path / "model"), tmp_path / "baked"))
    assert baked.config["tie_word_embeddings"] is True


def _bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import torch

    return torch.from_numpy(values).to(torch.bfloat16).float().numpy()


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_dtypes_are_converted_as_torch_does(tmp_path: Path, dtype: str, itemsize: int) -> None:
    settings = tiny.config()
    tensors = tiny.write_folder(tmp_path / "model", settings)
    baked = bake(str(tmp_path / "model"), tmp_path / "baked", dtype=dtype)
    rounding = {"float32": lambda v: v, "float16": lambda v: v.astype(np.float16), "bfloat16": _bfloat16}[dtype]
    expected = {name: rounding(tensor) for name, tensor in tiny.fused(tensors, settings).items()}
    tiny.assert_same(tiny.baked_tensors(baked), expected)
    assert BakedModel(baked).config["dtype"] == dtype
    assert BakedModel(baked).manifest["weights"] == {
        "dtype": dtype,
        "quantization": None,
        "num_parameters": sum(tensor.size for tensor in expected.values()),
    }
    assert (baked / "model.safetensors").stat().st_size >= itemsize * sum(tensor.size for tensor in expected.values())


def test_auto_keeps_bfloat16_bit_for_bit(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file as save_torch_file

    settings = tiny.config()
    tensors = {name: torch.from_numpy(tensor).bfloat16() for name, tensor in tiny.weights(settings).items()}
    tiny.write_folder(tmp_path / "model", settings)
    save_torch_file(tensors, tmp_path / "model" / "model.safetensors")
    baked = bake(str(tmp_path / "model"), tmp_path / "baked")
    expected = {name: tensor.float().numpy() for name, tensor in tensors.items()}
    tiny.assert_same(tiny.baked_tensors(baked), tiny.fused(expected, settings))
    assert BakedModel(baked).config["dtype"] == "bfloat16"


def test_large_tensors_go_through_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny.config()
    tensors = tiny.write_folder(tmp_path / "model", settings)
    monkeypatch.setattr("appliance.bake.writer._CHUNK_BYTES", 1000)
    baked = bake(str(tmp_path / "model"), tmp_path / "baked")
    tiny.assert_same(tiny.baked_tensors(baked), tiny.fused(tensors, settings))


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path / "model", shards=2)
    first, second = (bake(str(tmp_path / "model"), tmp_path / name) for name in ("one", "two"))
    names = sorted(file.name for file in first.iterdir())
    assert names == sorted(file.name for file in second.iterdir())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_manifest_names_model_source_and_licence(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n")
    (tmp_path / "model" / "LICENSE").write_text("Do what you like.\n")
    baked = bake(str(tmp_path / "model"), tmp_path / "baked", name="served")
    manifest = BakedModel(baked).manifest
    assert manifest["name"] == "served"
    assert manifest["licence"] == "apache-2.0"
    assert manifest["source"]["kind"] == "folder"
    assert manifest["source"]["id"] == "model"
    assert len(manifest["source"]["sha256"]) == 64
    assert set(manifest["files"]) == {file.name for file in baked.iterdir()} - {"manifest.json"}
    assert (baked / "LICENSE").read_text() == "Do what you like.\n"


@pytest.mark.parametrize(
    ("template_files", "expected"),
    [
        ({"tokenizer_config.json": {"chat_template": "plain"}}, "plain"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
                }
            },
            "d",
        ),
        ({"tokenizer_config.json": {"chat_template": "old"}, "chat_template.json": {"chat_template": "json"}}, "json"),
        (
            {"tokenizer_config.json": {"chat_template": "old"}, "chat_template.jinja": "file {{ x }}\n"},
            "file {{ x }}\n",
        ),
        ({}, None),
    ],
)
def test_chat_template_comes_from_where_the_model_has_it(
    tmp_path: Path, template_files: dict[str, Any], expected: str | None
) -> None:
    tiny.write_folder(tmp_path / "model")
    for name, content in template_files.items():
        (tmp_path / "model" / name).write_text(content if isinstance(content, str) else json.dumps(content))
    baked = BakedModel(bake(str(tmp_path / "model"), tmp_path / "baked"))
    assert baked.chat_template == expected
    assert "chat_template" not in baked.tokenizer_config


def test_generation_config_is_kept_and_completed_from_the_config(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text('{"temperature": 0.6, "transformers_version": "5"}')
    baked = BakedModel(bake(str(tmp_path / "model"), tmp_path / "baked"))
    assert baked.generation_config == {"temperature": 0.6, "bos_token_id": 1, "eos_token_id": 2}
    assert baked.eos_token_ids == [2]


@pytest.mark.parametrize(
    ("tokenizer_config", "added"),
    [
        (None, (False, False)),
        ({"add_bos_token": True}, (True, False)),
        ({"add_bos_token": True, "add_eos_token": True, "bos_token": {"content": "<s>"}}, (True, True)),
        ({"add_bos_token": True, "bos_token": None}, (False, False)),
    ],
)
def test_both_tokenizer_files_say_the_same_of_bos_and_eos(
    tmp_path: Path, tokenizer_config: dict[str, Any] | None, added: tuple[bool, bool]
) -> None:
    tiny.write_folder(tmp_path / "model", tokenizer_config=tokenizer_config)
    baked = BakedModel(bake(str(tmp_path / "model"), tmp_path / "baked"))
    ids = Tokenizer.from_file(str(baked.tokenizer_path)).encode("a", add_special_tokens=True).ids
    assert (ids[0] == 1, ids[-1] == 2) == added
    assert (baked.tokenizer_config["add_bos_token"], baked.tokenizer_config["add_eos_token"]) == added
    assert baked.tokenizer_config["eos_token"] == "</s>"


def test_a_post_processor_of_tokenizer_json_counts_where_the_config_is_silent(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path / "model")
    document = tiny.tokenizer_json()
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    tokens = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": tokens,
    }
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(document))
    baked = BakedModel(bake(str(tmp_path / "model"), tmp_path / "baked"))
    assert baked.tokenizer_config["add_bos_token"] is True
    assert baked.tokenizer_path.read_bytes() == (tmp_path / "model" / "tokenizer.json").read_bytes()


def test_progress_ends_at_one(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path / "model")
    seen: list[tuple[str, float]] = []
    bake(str(tmp_path / "model"), tmp_path / "baked", progress=lambda phase, done: seen.append((phase, done)))
    assert seen[-1] == ("weights", 1.0)
    assert [done for phase, done in seen if phase == "weights"] == sorted(done for p, done in seen if p == "weights")


def test_old_rotary_tables_are_ignored(tmp_path: Path) -> None:
    tensors = tiny.weights(tiny.config())
    extra = tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    tiny.write_folder(tmp_path / "model", tensors=extra)
    baked = bake(str(tmp_path / "model"), tmp_path / "baked")
    tiny.assert_same(tiny.baked_tensors(baked), tiny.fused(tensors, tiny.config()))


def test_a_single_file_without_its_index_is_enough(tmp_path: Path) -> None:
    tensors = tiny.write_folder(tmp_path / "model")
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    assert verify(bake(str(tmp_path / "model"), tmp_path / "baked")) == []
