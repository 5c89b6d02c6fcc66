"""Lets a parser be written as if it had the whole text, while the text arrives in pieces.

A parser is a generator that calls the readings below with ``yield from``; each waits by yielding until it can decide.
What a parser reads therefore never depends on where the pieces were cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]  # yields when it needs more text, returns what it read
Emit = Callable[[str], None]

_SPACE = " \t\r\n"


class TextReader:
    """The text that has arrived and how far it was read."""

    def __init__(self) -> None:
        self._buffer = ""
        self._position = 0
        self._mark: int | None = None
        self.is_ended = False

    def push(self, text: str) -> None:
        """More text has arrived."""
        if self._mark is None:
            self._buffer, self._position = self._buffer[self._position :] + text, 0
        else:
            self._buffer += text

    def end(self) -> None:
        """No more text will come."""
        self.is_ended = True

    @property
    def rest(self) -> str:
        """What has arrived and was not read."""
        return self._buffer[self._position :]

    def advance(self, count: int) -> None:
        """Count characters of `rest` as read."""
        self._position += count

    def unread(self, text: str) -> None:
        """Go back over text that was just read."""
        self._position -= len(text)

    def mark(self) -> None:
        """Remember this place, so that `since_mark` can give back what was read since."""
        self._mark = self._position

    def unmark(self) -> None:
        """Forget the place."""
        self._mark = None

    def since_mark(self) -> str:
        """The text read since `mark`."""
        assert self._mark is not None
        return self._buffer[self._mark : self._position]

    def pass_until(self, markers: Sequence[str], emit: Emit, *, drops_cut_marker: bool = False) -> Reading[str | None]:
        """Emit text up to the first marker and read over that; the marker, None at the end of the text.

        ``drops_cut_marker``: what may be half a marker at the very end of the text is not emitted.
        """
        markers = tuple(markers)
        while True:
            found = _pattern(markers).search(self._buffer, self._position)
            if found:
                self._emit_up_to(found.start(), emit)
                self._position = found.end()
                return found.group()
            num_kept = 0 if self.is_ended and not drops_cut_marker else self._num_undecided(markers)
            self._emit_up_to(len(self._buffer) - num_kept, emit)
            if self.is_ended:
                self._position = len(self._buffer)
                return None
            yield

    def pass_rest(self, emit: Emit) -> Reading[None]:
        """Emit all the text there will be."""
        while True:
            self._emit_up_to(len(self._buffer), emit)
            if self.is_ended:
                return
            yield

    def read_until(self, markers: Sequence[str]) -> Reading[tuple[str, str | None]]:
        """The text up to the first marker, and the marker (None at the end of the text)."""
        parts: list[str] = []
        marker = yield from self.pass_until(markers, parts.append)
        return "".join(parts), marker

    def take(self, literal: str) -> Reading[bool]:
        """Read over the literal if it comes next."""
        while True:
            coming = self._buffer[self._position : self._position + len(literal)]
            if coming == literal:
                self._position += len(literal)
                return True
            if self.is_ended or not literal.startswith(coming):
                return False
            yield

    def peek(self, offset: int = 0) -> Reading[str]:
        """The character that comes next (or later), "" at the end of the text."""
        while self._position + offset >= len(self._buffer):
            if self.is_ended:
                return ""
            yield
        return self._buffer[self._position + offset]

    def skip(self, characters: str = _SPACE) -> Reading[None]:
        """Read over white space."""
        while True:
            character = yield from self.peek()
            if not character or character not in characters:
                return
            self._position += 1

    def _emit_up_to(self, position: int, emit: Emit) -> None:
        if position > self._position:
            emit(self._buffer[self._position : position])
            self._position = position

    def _num_undecided(self, markers: tuple[str, ...]) -> int:
        """The length of the longest end of the text that may become a marker."""
        longest = 0
        for marker in markers:
            start = max(self._position, len(self._buffer) - len(marker) + 1)
            while (start := self._buffer.find(marker[0], start)) >= 0:
                if marker.startswith(self._buffer[start:]):
                    longest = max(longest, len(self._buffer) - start)
                    break
                start += 1
        return longest


@lru_cache(maxsize=256)
def _pattern(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(marker) for marker in sorted(markers, key=len, reverse=True)))
