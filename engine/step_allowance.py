"""How long may a step take before its engine counts as hanging? Long steps are legal where steps like it are long."""

from __future__ import annotations

from collections.abc import Callable, Sequence

FIRST_FACTOR = 10  # of the timeout, for a step about which nothing is known
LENIENCE = 3  # of what is known
NUM_SIZES = 24


class StepAllowance:
    """Learns from the steps that were taken, by their size to the next power of two. ``timeout_s`` 0 = any time.

    ``seconds`` are what an earlier engine has learned: of its latest step of each size, 0 where there was none; `keep`
    is told of each change.
    """

    def __init__(
        self,
        timeout_s: float,
        seconds: Sequence[float] = (),
        keep: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self._timeout_s = timeout_s
        self._seconds = [*seconds[:NUM_SIZES], *[0.0] * (NUM_SIZES - len(seconds))]
        self._keep = keep

    def allow(self, num_tokens: int) -> float:
        """Seconds for a step of so many tokens; 0 = any time."""
        if not self._timeout_s:
            return 0.0
        expected_s = self._expect(_size(num_tokens))
        return self._timeout_s + LENIENCE * expected_s if expected_s else FIRST_FACTOR * self._timeout_s

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step took so long."""
        size = _size(num_tokens)
        self._seconds[size] = seconds
        self._keep(size, seconds)

    def _expect(self, size: int) -> float:
        """What a step of this size took; else the most that smaller ones make of it, or what a larger one took."""
        if self._seconds[size]:
            return self._seconds[size]
        smaller = (seconds * 2 ** (size - other) for other, seconds in enumerate(self._seconds[:size]))
        return max(smaller, default=0.0) or next(filter(None, self._seconds[size:]), 0.0)


def _size(num_tokens: int) -> int:
    return min(num_tokens.bit_length(), NUM_SIZES - 1)
