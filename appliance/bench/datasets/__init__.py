"""Where prompts come from: name → builder, a function of options, tokenizer, count and a seeded generator."""

from __future__ import annotations

import random
from collections.abc import Callable

from appliance.bench.datasets.custom import load_custom
from appliance.bench.datasets.random_words import make_random
from appliance.bench.datasets.repeated_prefixes import make_prefix_repetition
from appliance.bench.datasets.sample import DatasetOptions, Sample
from appliance.bench.datasets.sharegpt import load_sharegpt
from appliance.bench.prompt_tokenizer import PromptTokenizer
from appliance.errors import SettingsError

Builder = Callable[[DatasetOptions, PromptTokenizer, int, random.Random], list[Sample]]

DATASETS: dict[str, Builder] = {
    "random": make_random,
    "sharegpt": load_sharegpt,
    "prefix_repetition": make_prefix_repetition,
    "custom": load_custom,
}

__all__ = ["DATASETS", "DatasetOptions", "Sample", "make_samples"]


def make_samples(options: DatasetOptions, tokenizer: PromptTokenizer, count: int, seed: int) -> list[Sample]:
    """`count` samples, the same for the same seed; a smaller dataset repeats itself unless that is forbidden.

    Raises SettingsError.
    """
    rng = random.Random(seed)  # noqa: S311 - prompts, not secrets
    samples = DATASETS[options.name](options, tokenizer, count, rng)
    if not samples:
        raise SettingsError([f"--dataset-name {options.name}: there is no usable prompt in it"])
    if len(samples) < count and options.may_repeat:
        samples += rng.choices(samples, k=count - len(samples))
    return samples
