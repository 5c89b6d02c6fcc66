"""What steps take, from the times that they took: those that only decode, and what prompt tokens add to one.

A prompt token's work grows with the tokens before it, in the proportion that the model's shape says
(`RunnerInfo.context_cost`), so what is learned is the time of one without any. It is the median of the latest steps
with a prompt: a step that something else held up changes nothing, a machine that became slower is noticed in a few.
"""

from __future__ import annotations

from collections import deque
from statistics import median_low

from engine.scheduler.step_cost import StepCost
from engine.step import StepInput

NUM_RECENT = 9  # steps with a prompt that count
FEWEST_TOKENS = 16  # of a prompt in a step: fewer tell more of the step than of themselves


class StepTime:
    """Learns from every step."""

    def __init__(self, context_cost: float) -> None:
        self.decoding = StepCost()
        self._context_cost = context_cost
        self._recent: deque[float] = deque(maxlen=NUM_RECENT)

    def observe(self, step: StepInput, seconds: float) -> None:
        """A step took so long."""
        num_decoding = sum(row.num_scheduled_tokens for row in step.rows if row.is_decoding)
        prompts = [row for row in step.rows if not row.is_decoding]
        if not prompts:
            self.decoding.observe(num_decoding, seconds)
        elif step.num_tokens - num_decoding >= FEWEST_TOKENS:
            work = sum(row.num_scheduled_tokens * self._work(row.num_computed_tokens) for row in prompts)
            self._recent.append(max(0.0, seconds - self.decoding.expect(num_decoding)) / work)

    def expect_prompt_token(self, num_before: int) -> float:
        """Seconds that a prompt token adds to a step when so many are before it; 0 where none was seen."""
        return median_low(self._recent) * self._work(num_before) if self._recent else 0.0

    def _work(self, num_before: int) -> float:
        return 1.0 + self._context_cost * num_before
