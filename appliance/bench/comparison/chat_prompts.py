"""Chats of a wanted length in tokens, cut from real text. No two begin alike, but those that are meant to.

Lengths are exact for models with the ChatML template and near for others; what is reported comes from usage.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from appliance.bench.prompt_tokenizer import PromptTokenizer
from appliance.bench.real_text import corpus_words

Messages = list[dict[str, str]]
_SPARE_WORDS = 200
_MAX_PADDING = 40


class ChatPrompts:
    """The same seed makes the same chats in the same order."""

    def __init__(self, tokenizer: PromptTokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)  # noqa: S311 - prompts, not secrets

    def count(self, messages: Messages) -> int:
        """Tokens under ChatML, with the beginning of the answer."""
        turns = [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages]
        return self._tokenizer.count("".join(turns) + "<|im_start|>assistant\n")

    def make(self, length: int) -> Messages:
        """A chat that shares nothing with another one."""
        name = self._name()

        def build(words: Sequence[str]) -> Messages:
            return [
                {"role": "system", "content": f"{name}: You are a careful assistant."},
                {"role": "user", "content": "Continue this text. " + " ".join(words)},
            ]

        return self._fit(build, length)

    def make_system(self, length: int) -> Messages:
        """A system message with a text of its own."""
        name = self._name()

        def build(words: Sequence[str]) -> Messages:
            return [{"role": "system", "content": f"{name}: Answer from this text. " + " ".join(words)}]

        return self._fit(build, length)

    def extend(self, system: Messages, length: int) -> Messages:
        """A chat of so many tokens more, behind a system message."""
        name = self._name()

        def build(words: Sequence[str]) -> Messages:
            return [*system, {"role": "user", "content": f"{name} " + " ".join(words)}]

        return self._fit(build, self.count(system) + length)

    def _name(self) -> str:
        return f"{self._rng.getrandbits(48):012x}"

    def _fit(self, build: Callable[[Sequence[str]], Messages], length: int) -> Messages:
        """The longest chat that is not too long, filled up with short words."""
        corpus = corpus_words()
        start = self._rng.randrange(len(corpus) - length - _SPARE_WORDS)
        words = corpus[start : start + length + _SPARE_WORDS]
        low, high = 1, len(words)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.count(build(words[:middle])) <= length else (low, middle - 1)
        chosen = words[:low]
        for _ in range(_MAX_PADDING):
            if self.count(build(chosen)) >= length:
                break
            chosen = [*chosen, "the"]
        return build(chosen)
