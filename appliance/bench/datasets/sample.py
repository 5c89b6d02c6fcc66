"""One prompt with the length of its answer, and what can be asked of the datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sample:
    """A prompt and how many tokens are to be generated for it."""

    prompt: str
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True)
class DatasetOptions:
    """Lengths are in tokens; None means the dataset's own (or 1024 in, 128 out where it has none)."""

    name: str = "random"
    path: Path | None = None
    input_len: int | None = None
    output_len: int | None = None
    range_ratio: float = 0.0  # random lengths are within ± this share
    prefix_len: int = 0
    repetition_prefix_len: int = 256
    repetition_suffix_len: int = 256
    num_prefixes: int = 10
    may_repeat: bool = True
    max_prompt_tokens: int = 1024  # of a conversation
    max_total_tokens: int = 2048
