"""The vocabulary that grammars are matched against: the baked model's tokenizer.json in llguidance's trie."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from llguidance import LLTokenizer


def load_vocabulary(path: Path, vocab_size: int, eos_token_ids: Collection[int]) -> LLTokenizer:
    """Takes a second for a large vocabulary. Raises ValueError with a line for people."""
    try:
        text = path.read_text(encoding="utf-8")
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=sorted(eos_token_ids) or None)
    except Exception as error:
        raise ValueError(f"is not available: {path.name} of this model cannot be used for grammars: {error}") from None
