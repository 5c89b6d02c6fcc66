"""Computes steps in a thread of its own, one after another: the caller plans the next one in the meantime.

A step may be submitted before the one before it is done. Tokens that it awaits are filled in here, where they are
drawn, so the runner sees the very step that it would have seen if the caller had waited.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from engine.step import Runner, StepInput, StepOutput


class StepThread:
    """`submit` and `close` are the caller's."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-step")
        self._drawn: dict[str, int] = {}  # last token of each request that the step before has drawn one for

    def submit(self, step: StepInput) -> Callable[[], StepOutput]:
        """Have a step computed after those before it. What is returned waits for it, and raises what it raised."""
        return self._executor.submit(self._execute, _detach(step)).result

    def close(self) -> None:
        """Wait for the step that is being computed; later ones are dropped."""
        self._executor.shutdown(cancel_futures=True)

    def _execute(self, step: StepInput) -> StepOutput:
        # A step that fails leaves nothing to go on from.
        drawn, self._drawn = self._drawn, {}
        for row in step.rows:
            if row.awaits_token:
                row.output_token_ids.append(drawn[row.request_id])
                row.awaits_token = False
        output = self._runner.execute(step)
        self._drawn = {row.request_id: ids[-1] for row, ids in zip(step.rows, output.token_ids, strict=True) if ids}
        return output


def _detach(step: StepInput) -> StepInput:
    """A copy that does not change with the requests while it is computed; prompts never change."""
    rows = [
        dataclasses.replace(row, output_token_ids=row.output_token_ids.copy(), block_ids=row.block_ids.copy())
        for row in step.rows
    ]
    return StepInput(rows)
