"""Text of a wanted number of tokens, and tokens of a text. Without a tokenizer.json both are estimates."""

from __future__ import annotations

import random
from functools import cached_property
from pathlib import Path
from typing import Protocol

import tokenizers

from appliance.bench.real_text import corpus_words
from appliance.errors import SettingsError

_CHARS_PER_TOKEN = 4.3
_MIN_WORD_IDS = 500
_FIT_ROUNDS = 10


class PromptTokenizer(Protocol):
    """What the datasets need."""

    is_exact: bool

    def count(self, text: str) -> int:
        """Tokens of a text, without what a server puts around it."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text. Only where ``is_exact``."""

    def random_text(self, length: int, rng: random.Random, prefix: str = "") -> str:
        """A text of random words that has `length` tokens together with `prefix`, at its start."""


class ModelTokenizer:
    """A model's own tokenizer.json."""

    is_exact = True

    def __init__(self, path: Path) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise SettingsError([f"--tokenizer: there is no {file}"])
        try:
            self._backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise SettingsError([f"--tokenizer: {file} cannot be read: {error}"]) from None
        self._backend.no_truncation()
        self._backend.no_padding()

    def count(self, text: str) -> int:
        """See `PromptTokenizer`."""
        return len(self.encode(text))

    def encode(self, text: str) -> list[int]:
        """See `PromptTokenizer`."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def random_text(self, length: int, rng: random.Random, prefix: str = "") -> str:
        """See `PromptTokenizer`. Exact but for vocabularies in which few words are one token."""
        if length <= 0:
            return prefix
        kept = self.encode(prefix)
        ids = kept + [rng.choice(self._word_ids) for _ in range(length - len(kept))]
        for _ in range(_FIT_ROUNDS):
            text = prefix + self._decode(ids[len(kept) :])
            now = self.encode(text)
            if len(now) == length:
                break
            ids = now[:length] + [rng.choice(self._word_ids) for _ in range(length - len(now))]
        return text

    def _decode(self, ids: list[int]) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text

    @cached_property
    def _word_ids(self) -> list[int]:
        """Tokens that stay themselves when they are decoded and encoded again: plain words with a blank in front."""
        special = {id for id, token in self._backend.get_added_tokens_decoder().items() if token.special}
        vocabulary = sorted((id, piece) for piece, id in self._backend.get_vocab().items() if id not in special)
        words = [id for id, piece in vocabulary if piece[:1] in "Ġ▁" and piece[1:].isascii() and piece[1:].isalpha()]
        return words if len(words) >= _MIN_WORD_IDS else [id for id, _ in vocabulary]


class EstimatingTokenizer:
    """For a server whose tokenizer is not at hand: the counts that are reported come from its usage blocks."""

    is_exact = False

    def count(self, text: str) -> int:
        """About so many."""
        return max(1, round(len(text) / _CHARS_PER_TOKEN)) if text else 0

    def encode(self, text: str) -> list[int]:
        """Not possible. Raises SettingsError."""
        raise SettingsError(["--tokenizer: token ids are needed, so name a tokenizer.json"])

    def random_text(self, length: int, rng: random.Random, prefix: str = "") -> str:
        """See `PromptTokenizer`: about so long."""
        words = [prefix] if prefix else []
        left_chars = _CHARS_PER_TOKEN * length - len(prefix)
        while left_chars > 0:
            word = rng.choice(corpus_words())
            words.append(word)
            left_chars -= len(word) + 1
        return " ".join(words)
