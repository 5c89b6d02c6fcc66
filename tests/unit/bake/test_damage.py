"""Damaged, cut-off and mismatched sources: always one clear BakeError, never a trace of a half-baked folder."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.bake import bake
from appliance.errors import BakeError
from tests.unit.bake import tiny_sources as tiny


def assert_refused(source: Path | str, tmp_path: Path, match: str | None = None, **options: Any) -> None:
    """Baking fails in one line and leaves the target's folder empty."""
    out = tmp_path / "out" / "baked"
    with pytest.raises(BakeError, match=match) as caught:
        bake(str(source), out, **options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert not out.parent.exists() or list(out.parent.iterdir()) == []


def _problem(source: Path, tmp_path: Path) -> str:
    """Bake; the error's message or, where the damage didn't matter, nothing."""
    try:
        bake(str(source), tmp_path / "out" / "baked", force=True)
    except BakeError as error:
        return str(error)
    return ""


def test_a_gguf_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    tiny.write_gguf(tmp_path / "whole.gguf")
    whole = (tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    rng = random.Random(0)
    offsets = {0, 1, 3, 4, 8, 23, 24, 31, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(60))}
    offsets |= set(range(24, 9000, 397))  # the header is about that long
    for offset in sorted(offsets):
        cut.write_bytes(whole[:offset])
        assert_refused(cut, tmp_path)


def test_a_gguf_with_a_random_byte_in_its_header_is_baked_or_refused(tmp_path: Path) -> None:
    tiny.write_gguf(tmp_path / "whole.gguf")
    whole = (tmp_path / "whole.gguf").read_bytes()
    hurt = tmp_path / "hurt.gguf"
    rng = random.Random(1)
    for number in range(150):
        position = rng.randrange(4, 9000) if number % 3 else rng.randrange(4, 400)
        hurt.write_bytes(whole[:position] + bytes([rng.randrange(256)]) + whole[position + 1 :])
        assert "\n" not in _problem(hurt, tmp_path)
        assert {entry.name for entry in (tmp_path / "out").iterdir()} <= {"baked"}


def test_huge_counts_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    for counts in [(2**63, 0), (0, 2**63), (2**40, 1), (2**64 - 1, 2**64 - 1)]:
        header = b"GGUF" + (3).to_bytes(4, "little") + b"".join(n.to_bytes(8, "little") for n in counts)
        (tmp_path / "m.gguf").write_bytes(header + bytes(100))
        assert_refused(tmp_path / "m.gguf", tmp_path)


def test_safetensors_cut_off_anywhere_are_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    tiny.write_folder(model)
    whole = (model / "model.safetensors").read_bytes()
    rng = random.Random(0)
    for offset in sorted({0, 1, 7, 8, 9, 100, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(40))}):
        (model / "model.safetensors").write_bytes(whole[:offset])
        assert_refused(model, tmp_path, r"model\.safetensors")


def test_safetensors_with_a_random_byte_in_the_header_are_baked_or_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    tiny.write_folder(model)
    whole = (model / "model.safetensors").read_bytes()
    rng = random.Random(2)
    for _ in range(100):
        position = rng.randrange(0, 2000)
        hurt = whole[:position] + bytes([rng.randrange(256)]) + whole[position + 1 :]
        (model / "model.safetensors").write_bytes(hurt)
        assert "\n" not in _problem(model, tmp_path)


def _rewrite(file: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        value = json.loads((folder / file).read_text())
        change(value)
        (folder / file).write_text(json.dumps(value))

    return apply


def _tensors(change: Callable[[tiny.Tensors], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = tiny.weights(tiny.config())
        change(tensors)
        tiny.write_folder(folder, tensors=tensors)

    return apply


def _set(**values: Any) -> Callable[[Path], None]:
    return _rewrite("config.json", lambda config: config.update(values))


def _without_weights(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        if name:
            (folder / name).write_bytes(b"x")

    return apply


def _text(file: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).write_text(content) and None


Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
BAD_FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), r"is not a model folder: config\.json is missing"),
    "config cut off": (_text("config.json", '{"a": '), r"config\.json is damaged"),
    "config a list": (_text("config.json", "[]"), r"config\.json is damaged: it does not hold a JSON object"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), r"tokenizer\.json is missing"),
    "tokenizer cut off": (_text("tokenizer.json", '{"version"'), r"tokenizer\.json is damaged"),
    "tokenizer of another model": (
        _rewrite("tokenizer.json", lambda t: t["model"]["vocab"].update({"zz": 300})),
        "token id 300, but vocab_size is 260: not of this model",
    ),
    "eos not in tokenizer": (_text("tokenizer_config.json", '{"eos_token": "<eos>"}'), "eos_token '<eos>' is not in"),
    "pickle": (_without_weights("pytorch_model.bin"), "only pickled weights"),
    "gguf": (_without_weights("m.gguf"), "holds GGUF files; name one of them"),
    "nothing": (_without_weights(""), "holds no weights"),
    "architecture": (
        _set(architectures=["MambaForCausalLM"]),
        "MambaForCausalLM is not supported; supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM",
    ),
    "no architecture": (_set(architectures=None), r"\(none; model_type llama\) is not supported"),
    "architectures a word": (_set(architectures=7), "is not supported"),
    "quantized": (_set(quantization_config={"quant_method": "hqq"}), "quantization hqq is not supported"),
    "size": (_set(hidden_size="64"), "hidden_size must be a positive integer up to 16777216, it is '64'"),
    "many layers": (_set(num_hidden_layers=2**31), "num_hidden_layers must be a positive integer up to"),
    "heads": (_set(num_key_value_heads=3), "4 is not a multiple of num_key_value_heads 3"),
    "odd heads": (_set(head_dim=15), "head_dim 15 is odd"),
    "rope": (_set(rope_scaling={"rope_type": "longrope"}), "rope type longrope is not supported"),
    "rope a word": (_set(rope_scaling="linear"), "rope_scaling must be an object"),
    "rope factor": (_set(rope_scaling={"type": "linear"}), "rope scaling linear needs a positive factor, it is None"),
    "theta": (_set(rope_theta=-1), "rope_theta must be a positive number"),
    "activation": (_set(hidden_act="gelu"), "hidden_act gelu is not supported"),
    "eps": (_set(rms_norm_eps=0), "rms_norm_eps must be a positive number"),
    "layers": (_set(num_hidden_layers=3), r"tensor model\.layers\.2\..* is missing"),
    "shape": (
        _set(intermediate_size=64),
        r"mlp\.gate_proj\.weight has shape \[96, 64\], the config asks for \[64, 64\]",
    ),
    "missing tensor": (_tensors(lambda t: t.pop(Q_PROJ)), f"tensor {Q_PROJ} is missing"),
    "missing head": (_tensors(lambda t: t.pop("lm_head.weight")), r"lm_head\.weight is missing"),
    "missing bias": (_set(attention_bias=True), r"q_proj\.bias is missing"),
    "extra tensor": (_tensors(lambda t: t.update(x=np.ones(4, np.float32))), "tensor x is not part of a Llama"),
    "integers": (_tensors(lambda t: t.update({Q_PROJ: t[Q_PROJ].astype(np.int8)})), "has dtype I8, supported are"),
    "nan": (_tensors(lambda t: t[Q_PROJ].__setitem__((3, 4), np.nan)), f"{Q_PROJ} holds NaN or infinite"),
    "infinite": (_tensors(lambda t: t[Q_PROJ].__setitem__((3, 4), np.inf)), f"{Q_PROJ} holds NaN or infinite"),
    "bad index": (_text("model.safetensors.index.json", '{"weight_map": {}}'), "weight_map does not name files"),
    "missing shard": (
        _text("model.safetensors.index.json", '{"weight_map": {"a": "model-9.safetensors"}}'),
        r"names model-9\.safetensors, which is missing",
    ),
    "shard elsewhere": (
        _text("model.safetensors.index.json", '{"weight_map": {"a": "../model.safetensors"}}'),
        "which is missing from",
    ),
    "generation config": (_text("generation_config.json", "{"), r"generation_config\.json is damaged"),
    "template not utf-8": (
        lambda f: (f / "chat_template.jinja").write_bytes(b"\xff\xfe") and None,
        r"chat_template\.jinja cannot be read",
    ),
    "layer types": (
        lambda f: _set(architectures=["MistralForCausalLM"], sliding_window=8, layer_types=["full_attention"])(f),
        "layer_types must name",
    ),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_a_folder_that_does_not_fit_is_refused(tmp_path: Path, case: str) -> None:
    model = tmp_path / "model"
    tiny.write_folder(model)
    change, message = BAD_FOLDERS[case]
    change(model)
    assert_refused(model, tmp_path, message)


def test_values_too_large_for_the_dtype_are_refused(tmp_path: Path) -> None:
    tensors = tiny.weights(tiny.config())
    tensors[Q_PROJ][0, 0] = 1e6
    tiny.write_folder(tmp_path / "model", tensors=tensors)
    assert_refused(
        tmp_path / "model", tmp_path, f"{Q_PROJ} holds values that are too large for float16", dtype="float16"
    )


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    tiny.write_folder(model, shards=2)
    shards = sorted(model.glob("model-*.safetensors"))
    shards[1].write_bytes(shards[0].read_bytes())
    assert_refused(model, tmp_path, "is in both model-00001-of-00002")


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("no/such/path", {}, "neither a file, a folder, a repository id"),
        ("./missing", {}, "neither a file, a folder, a repository id"),
        ("missing.gguf", {}, "neither a file, a folder, a repository id"),
        ("some-wheel==1.0", {}, "no digest pinned"),
        ("default", {"revision": "main"}, "is not a repository id"),
        ("default", {"dtype": "int3"}, "dtype int3 is not supported; supported are auto, float32"),
    ],
)
def test_a_source_that_is_nothing_is_refused(
    tmp_path: Path, source: str, options: dict[str, Any], message: str
) -> None:
    assert_refused(source, tmp_path, message, **options)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert_refused(tmp_path / "notes.txt", tmp_path, r"neither a \.gguf nor a \.whl file")


def test_a_baked_model_is_not_a_source(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path / "model")
    baked = bake(str(tmp_path / "model"), tmp_path / "baked")
    assert_refused(baked, tmp_path, "is a baked model already")
