"""Baked tokenizers give llama.cpp's ids (golden files: tests/unit/golden/make_llamacpp_ids.py) and decode back."""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from appliance.bake.gguf_file import GGUFFile
from appliance.bake.gguf_tokenizer import make_tokenizer, make_tokenizer_config
from appliance.bake.pre_tokenizers import PRE_TOKENIZERS
from appliance.errors import BakeError
from tests.unit.bake import tiny_sources as tiny
from tests.unit.golden.texts import SHORT_TEXTS, TEXTS

GOLDEN = Path(__file__).parent.parent / "golden"


@cache
def _golden(name: str) -> dict[str, Any]:
    golden: dict[str, Any] = json.loads((GOLDEN / name).read_text())
    return golden


def _tokenizer(path: Path) -> Tokenizer:
    file = GGUFFile(path)
    return Tokenizer.from_str(make_tokenizer(file, len(file.metadata["tokenizer.ggml.tokens"])))


def test_the_golden_file_is_of_this_corpus() -> None:
    assert [entry["text"] for entry in _golden("smollm2_llamacpp_ids.json")["texts"]] == TEXTS
    assert len(TEXTS) >= 60


@pytest.mark.parametrize("kind", ["plain", "special"])
def test_the_default_model_has_llama_cpps_ids(smollm2: Path, kind: str) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    tokenizer.encode_special_tokens = kind == "plain"
    for entry in _golden("smollm2_llamacpp_ids.json")["texts"]:
        assert tokenizer.encode(entry["text"], add_special_tokens=False).ids == entry[kind], entry["text"]


def test_the_default_model_decodes_back_to_the_text(smollm2: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=True).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def _write_vocabulary(path: Path, kind: dict[str, Any]) -> None:
    """A tiny model with the golden file's vocabulary."""
    keys: dict[str, Any] = {
        "tokenizer.ggml.model": kind["model"],
        "tokenizer.ggml.token_type": kind["types"],
        "tokenizer.ggml.add_bos_token": False,
    }
    if kind["model"] == "gpt2":
        keys |= {"tokenizer.ggml.pre": kind["pre"], "tokenizer.ggml.merges": kind["merges"]}
    else:
        keys["tokenizer.ggml.scores"] = [-float(number) for number in range(len(kind["tokens"]))]
        keys["tokenizer.ggml.add_space_prefix"] = kind["add_space_prefix"]
    tiny.write_gguf(path, tokens=kind["tokens"], keys=keys)


def _is_comparable(kind: dict[str, Any], text: str) -> bool:
    """Leaves out where ours follows the models' own tokenizers and llama.cpp does not.

    Qwen2's brings text into NFC; in DeepSeek's a pattern's white space is any white space, not only ASCII's.
    """
    if kind.get("pre") == "qwen2":
        return unicodedata.is_normalized("NFC", text)
    if str(kind.get("pre")).startswith("deepseek"):
        return not any(character.isspace() and not character.isascii() for character in text)
    return kind["model"] != "llama" or "\0" not in text  # there llama.cpp takes NUL for the end of a piece


KINDS = [
    kind.get("pre") or f"sentencepiece-{kind['add_space_prefix']}"
    for kind in _golden("tokenizers_llamacpp_ids.json")["kinds"]
]


@pytest.mark.parametrize("number", range(len(KINDS)), ids=KINDS)
def test_each_kind_of_tokenizer_has_llama_cpps_ids(tmp_path: Path, number: int) -> None:
    kind = _golden("tokenizers_llamacpp_ids.json")["kinds"][number]
    _write_vocabulary(tmp_path / "m.gguf", kind)
    tokenizer = _tokenizer(tmp_path / "m.gguf")
    compared = 0
    for text, expected in zip(SHORT_TEXTS, kind["ids"], strict=True):
        if _is_comparable(kind, text):
            assert tokenizer.encode(text, add_special_tokens=False).ids == expected, text
            compared += 1
    assert compared >= len(SHORT_TEXTS) - 3


@pytest.mark.parametrize("number", range(len(KINDS)), ids=KINDS)
def test_each_kind_of_tokenizer_decodes_back_to_the_text(tmp_path: Path, number: int) -> None:
    kind = _golden("tokenizers_llamacpp_ids.json")["kinds"][number]
    _write_vocabulary(tmp_path / "m.gguf", kind)
    tokenizer = _tokenizer(tmp_path / "m.gguf")
    tokenizer.encode_special_tokens = True  # behind a control token SentencePiece puts a space of its own
    for text in SHORT_TEXTS:
        expected = unicodedata.normalize("NFC", text) if kind.get("pre") == "qwen2" else text
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == expected


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_loads(tmp_path: Path, pre: str) -> None:
    tiny.write_gguf(tmp_path / "m.gguf", keys={"tokenizer.ggml.pre": pre})
    tokenizer = _tokenizer(tmp_path / "m.gguf")
    text = "Abc ab 2024 naïve 你好\n"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


@pytest.mark.parametrize(
    ("keys", "adds_bos", "adds_eos"),
    [
        ({}, False, False),
        ({"tokenizer.ggml.pre": "llama-bpe"}, True, False),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False, False),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}, True, True),
        ({"tokenizer.ggml.add_eos_token": True}, False, True),
    ],
)
def test_bos_and_eos_are_added_as_the_file_says(
    tmp_path: Path, keys: dict[str, Any], adds_bos: bool, adds_eos: bool
) -> None:
    tiny.write_gguf(tmp_path / "m.gguf", keys=keys)
    ids = _tokenizer(tmp_path / "m.gguf").encode("x", add_special_tokens=True).ids
    assert (ids[0] == 1, ids[-1] == 2) == (adds_bos, adds_eos)
    config = make_tokenizer_config(GGUFFile(tmp_path / "m.gguf"))
    assert (config["add_bos_token"], config["add_eos_token"]) == (adds_bos, adds_eos)
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", None)


def test_a_token_to_be_added_must_have_an_id(tmp_path: Path) -> None:
    tiny.write_gguf(
        tmp_path / "m.gguf", keys={"tokenizer.ggml.add_bos_token": True}, drop=("tokenizer.ggml.bos_token_id",)
    )
    with pytest.raises(BakeError, match="a token is to be added to each text, but its id is not named"):
        _tokenizer(tmp_path / "m.gguf")


def test_control_tokens_are_special_and_user_defined_ones_are_not(tmp_path: Path) -> None:
    types = [2, 3, 1, *([1] * (tiny.VOCAB - 4)), 4]  # unknown, BOS, EOS (its type forgotten), …, user defined
    tiny.write_gguf(tmp_path / "m.gguf", keys={"tokenizer.ggml.token_type": types})
    added = _tokenizer(tmp_path / "m.gguf").get_added_tokens_decoder()
    assert {number: token.special for number, token in added.items()} == {0: True, 1: True, 2: True, 259: False}


def test_sentencepiece_needs_its_scores(tmp_path: Path) -> None:
    tiny.write_gguf(tmp_path / "m.gguf", keys={"tokenizer.ggml.model": "llama"})
    with pytest.raises(BakeError, match=r"tokenizer\.ggml\.scores is missing"):
        _tokenizer(tmp_path / "m.gguf")
