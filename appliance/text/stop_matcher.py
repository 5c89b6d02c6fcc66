"""Finds stop strings in text that arrives in pieces, holding back only what may still become one.

Each stop string is followed by a Knuth-Morris-Pratt automaton, so a character costs the same whatever the strings are.
"""

from __future__ import annotations

from collections.abc import Sequence


class _Progress:
    """How much of one stop string the text's end spells."""

    __slots__ = ("fallback", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self.fallback = _fallback_table(stop)

    def advance(self, text: str, is_armed: bool) -> int | None:
        """How many characters of `text` it takes to complete the stop string, None if it is not completed.

        Not armed, a completed stop string is passed over like any other text.
        """
        stop, fallback, matched = self.stop, self.fallback, self.matched
        if not matched and stop[0] not in text:
            return None
        for position, character in enumerate(text, 1):
            while matched and (matched == len(stop) or stop[matched] != character):
                matched = fallback[matched]
            if stop[matched] == character:
                matched += 1
                if matched == len(stop) and is_armed:
                    return position
        self.matched = matched if matched < len(stop) else fallback[matched]
        return None


class StopMatcher:
    """The match that completes first wins, ties go to the earlier string of the list.

    ``include_stop`` keeps the matched string in the text. After a match nothing more may be fed.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._progresses = [_Progress(stop) for stop in stops if stop]
        self._include_stop = include_stop
        self.has_any = bool(self._progresses)  # without, there is no need to feed it
        self._held = ""

    def feed(self, text: str, *, is_armed: bool = True) -> tuple[str, str | None]:
        """The text that is now certain, and the stop string that ends it (None: go on)."""
        if not self._progresses or not text:
            return text, None
        stop, position = self._first_match(text, is_armed)
        text, start = self._held + text, len(self._held)
        if stop is not None:
            self._held = ""
            return text[: start + position - (0 if self._include_stop else len(stop))], stop
        kept = len(text) - max(progress.matched for progress in self._progresses)
        self._held = text[kept:]
        return text[:kept], None

    def flush(self) -> str:
        """The text held back when the generation ended without a match."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str, is_armed: bool) -> tuple[str | None, int]:
        stop, first = None, len(text) + 1
        for progress in self._progresses:
            position = progress.advance(text, is_armed)
            if position is not None and position < first:
                stop, first = progress.stop, position
        return stop, first


def _fallback_table(stop: str) -> list[int]:
    """For each matched length, the longest shorter prefix that the text's end spells too."""
    table = [0] * (len(stop) + 1)
    length = 0
    for position in range(1, len(stop)):
        while length and stop[position] != stop[length]:
            length = table[length]
        if stop[position] == stop[length]:
            length += 1
        table[position + 1] = length
    return table
