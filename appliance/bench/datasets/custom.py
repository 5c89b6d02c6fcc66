"""`custom`: your own prompts, one JSON object a line: {"prompt": …, "output_len": …}; the length may be left out."""

from __future__ import annotations

import json
import random
from typing import Any

from appliance.bench.datasets.random_words import DEFAULT_OUTPUT_LEN
from appliance.bench.datasets.sample import DatasetOptions, Sample
from appliance.bench.prompt_tokenizer import PromptTokenizer
from appliance.errors import SettingsError


def load_custom(options: DatasetOptions, tokenizer: PromptTokenizer, count: int, rng: random.Random) -> list[Sample]:
    """See the module; the first `count`, in the file's order. ``--output-len`` wins over the file's lengths."""
    if options.path is None:
        raise SettingsError(["--dataset-path: the custom dataset needs a JSONL file"])
    try:
        lines = options.path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise SettingsError([f"--dataset-path: {options.path} cannot be read: {error}"]) from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    return [_read(options, tokenizer, number, line) for number, line in numbered[:count]]


def _read(options: DatasetOptions, tokenizer: PromptTokenizer, number: int, line: str) -> Sample:
    where = f"--dataset-path: line {number} of {options.path}"
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise SettingsError([f"{where} is not JSON: {error}"]) from None
    prompt = row.get("prompt") if isinstance(row, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise SettingsError([f"{where} has no text in prompt"])
    length = options.output_len or row.get("output_len", row.get("output_tokens", DEFAULT_OUTPUT_LEN))
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise SettingsError([f"{where}: output_len must be a whole number of at least 1, not {length!r}"])
    return Sample(prompt, tokenizer.count(prompt), length)
