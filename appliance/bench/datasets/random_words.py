"""`random`: random words, of a length that may vary, behind a shared beginning if one is asked for."""

from __future__ import annotations

import math
import random

from appliance.bench.datasets.sample import DatasetOptions, Sample
from appliance.bench.prompt_tokenizer import PromptTokenizer

DEFAULT_INPUT_LEN = 1024
DEFAULT_OUTPUT_LEN = 128


def make_random(options: DatasetOptions, tokenizer: PromptTokenizer, count: int, rng: random.Random) -> list[Sample]:
    """See the module."""
    input_len = DEFAULT_INPUT_LEN if options.input_len is None else options.input_len
    output_len = DEFAULT_OUTPUT_LEN if options.output_len is None else options.output_len
    prefix = tokenizer.random_text(options.prefix_len, rng) if options.prefix_len else ""
    samples = []
    for _ in range(count):
        length = options.prefix_len + _vary(input_len, options.range_ratio, rng)
        prompt = tokenizer.random_text(length, rng, prefix)
        output = _vary(output_len, options.range_ratio, rng)
        samples.append(Sample(prompt, tokenizer.count(prompt), output))
    return samples


def _vary(length: int, ratio: float, rng: random.Random) -> int:
    return max(1, rng.randint(math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio))))
