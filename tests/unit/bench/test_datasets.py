"""Datasets: lengths, seeds, damaged files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from appliance.bench.datasets import DatasetOptions, make_samples
from appliance.bench.datasets import sharegpt as sharegpt_module
from appliance.bench.prompt_tokenizer import EstimatingTokenizer, ModelTokenizer
from appliance.errors import SettingsError

ESTIMATE = EstimatingTokenizer()


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> ModelTokenizer:
    return ModelTokenizer(smollm2)


def test_random_lengths_are_exact(tokenizer: ModelTokenizer) -> None:
    options = DatasetOptions(input_len=100, output_len=20, prefix_len=30)
    samples = make_samples(options, tokenizer, 20, 1)
    assert {(sample.num_prompt_tokens, sample.num_output_tokens) for sample in samples} == {(130, 20)}
    assert len({tuple(tokenizer.encode(sample.prompt)[:30]) for sample in samples}) == 1
    assert len({sample.prompt for sample in samples}) == 20
    assert samples == make_samples(options, tokenizer, 20, 1)
    assert samples != make_samples(options, tokenizer, 20, 2)


def test_random_range(tokenizer: ModelTokenizer) -> None:
    samples = make_samples(DatasetOptions(input_len=40, output_len=10, range_ratio=0.5), tokenizer, 60, 1)
    assert {20 <= sample.num_prompt_tokens <= 60 for sample in samples} == {True}
    assert {5 <= sample.num_output_tokens <= 15 for sample in samples} == {True}
    assert len({sample.num_prompt_tokens for sample in samples}) > 10


def test_random_without_tokenizer() -> None:
    (sample,) = make_samples(DatasetOptions(input_len=100), ESTIMATE, 1, 1)
    assert 90 <= sample.num_prompt_tokens <= 110


def test_prefix_repetition(tokenizer: ModelTokenizer) -> None:
    options = DatasetOptions("prefix_repetition", repetition_prefix_len=40, repetition_suffix_len=8, num_prefixes=3)
    samples = make_samples(options, tokenizer, 12, 5)
    assert {sample.num_prompt_tokens for sample in samples} == {48}
    heads = Counter(tuple(tokenizer.encode(sample.prompt)[:40]) for sample in samples)
    assert sorted(heads.values()) == [4, 4, 4]
    assert samples[:5] == make_samples(options, tokenizer, 5, 5)


def test_custom(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "one", "output_len": 3}\n\n{"prompt": "two", "output_tokens": 5}\n{"prompt": "three"}\n'
    )
    options = DatasetOptions("custom", path=file)
    assert [(s.prompt, s.num_output_tokens) for s in make_samples(options, ESTIMATE, 3, 0)] == [
        ("one", 3),
        ("two", 5),
        ("three", 128),
    ]
    assert len(make_samples(options, ESTIMATE, 10, 0)) == 10
    assert len(make_samples(DatasetOptions("custom", path=file, may_repeat=False), ESTIMATE, 10, 0)) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 of .* is not JSON"),
        ("[]", "line 1 of .* has no text in prompt"),
        ('{"prompt": "a", "output_len": 0}', "output_len must be a whole number of at least 1, not 0"),
        ("", "there is no usable prompt"),
    ],
)
def test_bad_custom(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(line)
    with pytest.raises(SettingsError, match=message):
        make_samples(DatasetOptions("custom", path=file), ESTIMATE, 1, 0)


def conversation(index: int, prompt: str = "How are you today, my friend?") -> dict[str, object]:
    turns = [{"from": "human", "value": f"{prompt} {index}"}, {"from": "gpt", "value": "I am well, thank you. " * 3}]
    return {"id": f"c{index}", "conversations": turns}


def write(path: Path, rows: list[dict[str, object]], cut: int = 0) -> DatasetOptions:
    text = json.dumps(rows, indent=1)
    path.write_text(text[: len(text) - cut])
    return DatasetOptions("sharegpt", path=path, may_repeat=False)


@pytest.mark.parametrize("piece_chars", [7, 100, 10**6])
def test_sharegpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_chars: int) -> None:
    monkeypatch.setattr(sharegpt_module, "_PIECE_CHARS", piece_chars)
    long = conversation(98, "word " * 9000)
    short: dict[str, object] = {"id": "x", "conversations": [{"value": "alone"}]}
    options = write(tmp_path / "s.json", [*(conversation(index) for index in range(20)), long, short])
    samples = make_samples(options, ESTIMATE, 50, 3)
    assert len(samples) == 20
    assert samples[:4] == make_samples(options, ESTIMATE, 4, 3)
    assert make_samples(options, ESTIMATE, 20, 4) != samples


def test_sharegpt_that_breaks_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = write(tmp_path / "s.json", [conversation(index) for index in range(5)], cut=30)
    assert len(make_samples(options, ESTIMATE, 50, 3)) == 4
    assert "breaks off after 4 conversations" in capsys.readouterr().err


def test_sharegpt_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("hello")
    with pytest.raises(SettingsError, match="is not a JSON array"):
        make_samples(DatasetOptions("sharegpt", path=tmp_path / "s.json"), ESTIMATE, 1, 0)


def test_bad_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no"):
        ModelTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SettingsError, match="cannot be read"):
        ModelTokenizer(tmp_path)
    with pytest.raises(SettingsError, match=r"name a tokenizer\.json"):
        ESTIMATE.encode("x")
