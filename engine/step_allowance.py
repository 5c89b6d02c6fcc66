"""How long may a step take before its engine counts as hanging? Long steps are legal where steps like it are long."""

from __future__ import annotations

FIRST_FACTOR = 2  # a step of a size that was never seen may have to compile or map something
SEEN_FACTOR = 3


class StepAllowance:
    """Learns from the steps that were taken, by their size to the next power of two. ``timeout_s`` 0 = any time."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._seconds: dict[int, float] = {}  # of the latest step of a size

    def allow(self, num_tokens: int) -> float:
        """Seconds for a step of so many tokens; 0 = any time."""
        seen_s = self._seconds.get(num_tokens.bit_length())
        if seen_s is None:
            return FIRST_FACTOR * self._timeout_s
        return self._timeout_s + SEEN_FACTOR * seen_s if self._timeout_s else 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step took so long."""
        self._seconds[num_tokens.bit_length()] = seconds
