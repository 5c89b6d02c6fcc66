"""The cases that every implementation of the sampling ops must get right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrawShape:
    """Rows of a vocabulary, each with (temperature, top_k, top_p, min_p)."""

    vocab_size: int
    rows: tuple[tuple[float, int, float, float], ...]
    has_ties: bool = False  # values of a coarse grid, where many tokens are equal
    has_masks: bool = False  # -inf for half of the tokens
    spread: float = 3.0  # of the logits; a small one leaves a nucleus of thousands


def draw_shapes() -> Iterator[DrawShape]:
    """Greedy and drawn rows, each way to truncate alone and together, ties, masks, more than a chunk of tokens."""
    plain = ((0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.3, 0, 1.0, 0.0))
    cut = ((1.0, 5, 1.0, 0.0), (1.0, 0, 0.7, 0.0), (1.0, 0, 1.0, 0.2), (0.7, 20, 0.9, 0.05), (1.0, 1, 1.0, 0.0))
    yield DrawShape(259, ())
    yield DrawShape(259, plain)
    yield DrawShape(259, plain + cut)
    yield DrawShape(100, cut, has_ties=True)
    yield DrawShape(300, plain + cut, has_masks=True)
    yield DrawShape(9001, plain + cut)
    yield DrawShape(5000, cut[1:4], spread=0.01)
    yield DrawShape(40, cut * 6)  # many draws from few tokens: a bound that is off by one shows


@dataclass(frozen=True, slots=True)
class SeenShape:
    """Rows that have seen so many different tokens."""

    vocab_size: int
    seen: tuple[int, ...]


def seen_shapes() -> Iterator[SeenShape]:
    """No rows, rows that have seen nothing, and more than a block."""
    yield SeenShape(50, ())
    yield SeenShape(50, (0, 7))
    yield SeenShape(3000, (1, 2500, 0, 40))


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Rows with so many drafts, of which so many hold."""

    drafts: tuple[tuple[int, int], ...]


def draft_shapes() -> Iterator[DraftShape]:
    """No rows; no drafts; none, some and all that hold."""
    yield DraftShape(())
    yield DraftShape(((0, 0),))
    yield DraftShape(((3, 0), (3, 3), (0, 0), (5, 2), (1, 1)))
