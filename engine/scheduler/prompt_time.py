"""How many prompt tokens a step may compute that streams wait for: as many as its time has room for.

Prompts get their piece in any case, however slow the machine: as many tokens as streams have then, as those who wait
for their first one would starve beside many streams.
"""

from __future__ import annotations

import sys

from engine.scheduler.step_time import StepTime

GRAIN = 16  # tokens: pieces are whole numbers of it


class PromptTime:
    """Of one step. ``seconds`` are what is left for prompts beside `num_decoding` rows, None = any time."""

    def __init__(self, seconds: float | None, step_time: StepTime, num_decoding: int = 0) -> None:
        self._seconds = seconds
        self._step_time = step_time
        self._num_least = max(1, -(-num_decoding // GRAIN)) * GRAIN
        self._num_taken = 0

    def left(self, num_before: int) -> int:
        """Tokens that may still be taken of a prompt of which `num_before` are computed."""
        token_s = 0.0 if self._seconds is None else self._step_time.expect_prompt_token(num_before)
        if self._seconds is None or not token_s:
            return sys.maxsize
        num_fitting = int(self._seconds / token_s) // GRAIN * GRAIN
        return max(num_fitting, self._num_least - self._num_taken, 0)

    def take(self, num_tokens: int, num_before: int) -> None:
        """They were planned."""
        self._num_taken += num_tokens
        if self._seconds is not None:
            self._seconds -= num_tokens * self._step_time.expect_prompt_token(num_before)
