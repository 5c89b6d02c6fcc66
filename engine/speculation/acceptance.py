"""How likely the next token of a draft is right, from how earlier ones fared: of this request, and of all.

Kept apart by the length of the match that a draft came from, which tells most about it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MEMORY = 0.9  # weight that a request's earlier drafts keep when another has been checked
SHARED_MEMORY = 0.99
FIRST_GUESS, FIRST_WEIGHT = 0.5, 4.0  # before anything is known
SHARED_WEIGHT = 4.0  # what all requests say counts as this many tokens of this one


@dataclass(slots=True)
class _Counts:
    num_checked: float = 0.0
    num_right: float = 0.0

    def add(self, num_right: int, num_checked: int, memory: float) -> None:
        self.num_checked = self.num_checked * memory + num_checked
        self.num_right = self.num_right * memory + num_right

    def rate(self, guess: float, weight: float) -> float:
        return (self.num_right + guess * weight) / (self.num_checked + weight)


@dataclass(slots=True)
class Acceptance:
    """Chances by match length; `shared` is that of all requests, which a request starts from."""

    shared: Acceptance | None = None
    _counts: dict[int, _Counts] = field(default_factory=dict)

    def chance(self, match_length: int) -> float:
        """That a token of a draft is right where all before it were; above 0, below 1."""
        counts = self._counts.get(match_length) or _Counts()
        if self.shared is None:
            return counts.rate(FIRST_GUESS, FIRST_WEIGHT)
        return counts.rate(self.shared.chance(match_length), SHARED_WEIGHT)

    def record(self, match_length: int, num_right: int, *, was_wrong: bool) -> None:
        """A draft had `num_right` right tokens, then a wrong one if `was_wrong`; what comes after that says nothing."""
        memory = SHARED_MEMORY if self.shared is None else MEMORY
        self._counts.setdefault(match_length, _Counts()).add(num_right, num_right + was_wrong, memory)
        if self.shared is not None:
            self.shared.record(match_length, num_right, was_wrong=was_wrong)
