"""`prefix_repetition`: few long beginnings, each shared by many prompts that end differently."""

from __future__ import annotations

import random

from appliance.bench.datasets.random_words import DEFAULT_OUTPUT_LEN
from appliance.bench.datasets.sample import DatasetOptions, Sample
from appliance.bench.prompt_tokenizer import PromptTokenizer


def make_prefix_repetition(
    options: DatasetOptions, tokenizer: PromptTokenizer, count: int, rng: random.Random
) -> list[Sample]:
    """See the module; the prefixes are dealt out evenly, in random order."""
    prefixes = [tokenizer.random_text(options.repetition_prefix_len, rng) for _ in range(options.num_prefixes)]
    length = options.repetition_prefix_len + options.repetition_suffix_len
    output_len = DEFAULT_OUTPUT_LEN if options.output_len is None else options.output_len
    samples: list[Sample] = []
    while len(samples) < count:
        rng.shuffle(prefixes)
        for prefix in prefixes[: count - len(samples)]:
            prompt = tokenizer.random_text(length, rng, prefix)
            samples.append(Sample(prompt, tokenizer.count(prompt), output_len))
    return samples
