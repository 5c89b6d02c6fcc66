"""Computes steps in a thread of its own, one after another: the caller plans the next one in the meantime.

A step may be submitted before the one before it is done. Tokens that it awaits are filled in here, where they are
drawn, so the runner sees the very step that it would have seen if the caller had waited.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from engine.awaited_tokens import AwaitedTokens, detach
from engine.step import Runner, StepInput, StepOutput


class StepThread:
    """`TakesStepsAhead` for a runner that does not. All methods are the caller's."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-step")
        self._awaited = AwaitedTokens()  # the thread's

    def submit(self, step: StepInput) -> Callable[[], StepOutput]:
        """See `TakesStepsAhead`."""
        return self._executor.submit(self._execute, detach(step)).result

    def close(self) -> None:
        """Wait for the step that is being computed; later ones are dropped."""
        self._executor.shutdown(cancel_futures=True)

    def _execute(self, step: StepInput) -> StepOutput:
        self._awaited.fill(step)
        output = self._runner.execute(step)
        self._awaited.take(step, output)
        return output
