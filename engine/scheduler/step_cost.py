"""What one more token costs in a step, from the times that steps took: a straight line, refitted as times come in.

A step of n tokens takes ``a + c * n``. For drafts only a / c matters: the step's fixed part (reading the weights,
mostly) counted in tokens. Where it is large, guessed tokens ride along almost for free; beside many rows they never do.
"""

from __future__ import annotations

MEMORY = 0.99  # weight that earlier steps keep when another is seen
FIRST_FIXED_TOKENS = 3.0  # int8 on two AVX2 cores: 9 ms for one row, 2.3 ms for each more
MAX_FIXED_TOKENS = 1000.0
MIN_VARIANCE = 0.1  # of n: with less, a slope is noise
OUTLIER = 4.0  # times the mean: a step that slow was held up by something else


class StepCost:
    """Learns from steps of which every row is decoding."""

    def __init__(self) -> None:
        self.fixed_tokens = FIRST_FIXED_TOKENS
        self._weight = self._n = self._nn = self._t = self._nt = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of `num_tokens` took so long."""
        if self._weight > 1.0 and seconds > OUTLIER * self._t / self._weight:
            seconds = OUTLIER * self._t / self._weight
        self._weight = self._weight * MEMORY + 1.0
        self._n = self._n * MEMORY + num_tokens
        self._nn = self._nn * MEMORY + num_tokens * num_tokens
        self._t = self._t * MEMORY + seconds
        self._nt = self._nt * MEMORY + num_tokens * seconds
        self._fit()

    def relative_cost(self, num_rows: int, num_tokens: int) -> float:
        """Of one more token in a step of `num_tokens` that brings `num_rows` tokens: the share of its gain in time.

        A draft token pays where it is right with a greater chance: throughput is rows over time, and one more row of
        `num_rows` is worth it while it lengthens the step by less than one part in `num_rows`.
        """
        return num_rows / (self.fixed_tokens + num_tokens)

    def expect(self, num_tokens: int) -> float:
        """Seconds of a step of `num_tokens`; 0 where no step was seen."""
        if not self._weight:
            return 0.0
        mean_n, mean_t = self._n / self._weight, self._t / self._weight
        return mean_t * (self.fixed_tokens + num_tokens) / (self.fixed_tokens + mean_n)

    def _fit(self) -> None:
        mean_n, mean_t = self._n / self._weight, self._t / self._weight
        variance = self._nn / self._weight - mean_n * mean_n
        if variance < MIN_VARIANCE:
            return  # what was found before still holds
        slope = (self._nt / self._weight - mean_n * mean_t) / variance
        fixed = mean_t - slope * mean_n
        if slope <= 0.0:
            self.fixed_tokens = MAX_FIXED_TOKENS
        else:
            self.fixed_tokens = min(MAX_FIXED_TOKENS, max(0.0, fixed / slope))
