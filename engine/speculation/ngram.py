"""Prompt lookup: what followed the last time that a request's latest tokens came up, in its prompt or in its output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

NUM_CANDIDATES = 8  # earlier places that are compared, the latest first


@dataclass(frozen=True, slots=True)
class Match:
    """Tokens that may come next, and how many tokens before them were the same."""

    token_ids: list[int]
    length: int


class NgramIndex:
    """A request's tokens so far, findable by every `min_length` of them in a row.

    Each place knows the one before it with the same tokens, so adding a token and finding a match cost the same
    however long the request is. `min_length` ≥ 1; matches longer than `max_length` count as `max_length`.
    """

    def __init__(self, min_length: int, max_length: int) -> None:
        self._min_length = min_length
        self._max_length = max_length
        self._token_ids: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}  # run of tokens → where it ended last (exclusive)
        self._earlier: dict[int, int] = {}  # end of a run → where the same run ended before

    def __len__(self) -> int:
        return len(self._token_ids)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Add the tokens that came next."""
        known, size = self._token_ids, self._min_length
        for token_id in token_ids:
            known.append(token_id)
            end = len(known)
            if end < size:
                continue
            run = tuple(known[end - size :])
            before = self._latest.get(run)
            if before is not None:
                self._earlier[end] = before
            self._latest[run] = end

    def find(self, count: int) -> Match | None:
        """Up to `count` tokens that followed the longest match, the latest among equals; None where there is none.

        A match that runs into the end of what is known goes on with itself: a loop is guessed to go on.
        """
        best_end, best_length = 0, 0
        end = self._earlier.get(len(self._token_ids))
        for _ in range(NUM_CANDIDATES):
            if end is None or best_length == self._max_length:
                break
            length = self._match_length(end)
            if length > best_length:
                best_end, best_length = end, length
            end = self._earlier.get(end)
        return Match(self._following(best_end, count), best_length) if best_length else None

    def _match_length(self, end: int) -> int:
        known, length = self._token_ids, self._min_length
        longest = min(self._max_length, end)
        while length < longest and known[end - length - 1] == known[-length - 1]:
            length += 1
        return length

    def _following(self, start: int, count: int) -> list[int]:
        token_ids = self._token_ids[start : start + count]
        period = len(token_ids)
        while len(token_ids) < count:
            token_ids.append(token_ids[-period])
        return token_ids
