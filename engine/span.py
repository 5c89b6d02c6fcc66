"""A run of rows, columns, heads or channels: the part of a matrix that one rank of tensor parallelism has. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """From `start` up to, not including, `end`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """How many."""
        return self.end - self.start

    def times(self, factor: int) -> Span:
        """The same in units a `factor` smaller: heads as channels, say."""
        return Span(self.start * factor, self.end * factor)

    def after(self, offset: int) -> Span:
        """The same behind `offset` others."""
        return Span(self.start + offset, self.end + offset)


def join_adjacent(spans: Iterable[Span]) -> list[Span]:
    """The same rows in as few spans as possible, in the same order."""
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].end == span.start:
            span = Span(joined.pop().start, span.end)
        joined.append(span)
    return joined
