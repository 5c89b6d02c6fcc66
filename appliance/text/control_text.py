"""Keeps text that merely looks like a control token apart from the control tokens a chat template writes.

User text such as ``<|im_end|>`` is wrapped in two Unicode noncharacters before the template sees it; the tokenizer
encodes what is wrapped as ordinary text. Noncharacters never occur in real text, survive ``trim`` and ``tojson``, and
leave ``'<think>' in content`` and the like true. Knows nothing of ids: the encoding is `tokenizer`'s job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

START, END = "\ufdd0", "\ufdd1"  # around a look-alike
NAME_START, NAME_END = "\ufdd2", "\ufdd3"  # around the number of a real control token, see `number_controls`
CUT = "\ufdd4"  # where the final message's content ends, see `chat_template`
_RESERVED = re.compile("[\ufdd0-\ufdd4]")
_MARKS = re.compile(f"[{START}{END}]")


def unmark(text: str) -> str:
    """The text as the model's author would read it: without our marks."""
    return _RESERVED.sub("", text)


def has_marks(text: str) -> bool:
    """Whether the text holds a look-alike."""
    return START in text or END in text


class LookalikeMarker:
    """Marks every spelling of the given tokens in strings, lists and dicts (a template may change letter case)."""

    def __init__(self, tokens: Iterable[str]) -> None:
        tokens = [token for token in tokens if token.strip()]
        self._pattern = re.compile(alternatives(tokens), re.IGNORECASE) if tokens else None
        self._first_characters = frozenset(c for token in tokens for c in (token[0].lower(), token[0].upper()))

    def mark(self, value: Any) -> Any:
        """A copy of plain JSON data with all look-alikes in its strings (keys too) marked."""
        if isinstance(value, str):
            return self._mark_text(value)
        if isinstance(value, dict):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item) for item in value]
        return value

    def _mark_text(self, text: str) -> str:
        if not text.isascii():
            text = _RESERVED.sub("", text)  # or a caller could forge the end of a look-alike
        if self._pattern is None or not any(c in text for c in self._first_characters):
            return text
        return self._pattern.sub(rf"{START}\g<0>{END}", text)


def alternatives(tokens: Iterable[str]) -> str:
    """A pattern that matches the longest of the tokens, as tokenizers do."""
    return "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True))


def number_controls(tokens: list[str]) -> Callable[[str], str]:
    """A function that replaces each real control token of a marked text by its `control_name` and drops the marks.

    A token next to a single mark counts as a look-alike: the template cut the other mark off.
    """
    numbers = {token: number for number, token in enumerate(tokens)}
    pattern = re.compile(f"({START}?)({alternatives(tokens)})({END}?)|{_MARKS.pattern}")

    def replace(match: re.Match[str]) -> str:
        token = match.group(2)
        if token is None:
            return ""
        return token if match.group(1) or match.group(3) else control_name(numbers[token])

    return lambda text: pattern.sub(replace, text)


def control_name(number: int) -> str:
    """What stands for a real control token: no user text can spell it, because marking removes the noncharacters."""
    return f"{NAME_START}{number}{NAME_END}"
