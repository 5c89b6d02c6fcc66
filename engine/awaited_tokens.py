"""Tokens that a step awaits when it is submitted, because the step before it has yet to draw them."""

from __future__ import annotations

import dataclasses

from engine.step import StepInput, StepOutput


class AwaitedTokens:
    """Carries them over from each step to the next, in the order in which the steps are computed."""

    def __init__(self) -> None:
        self._drawn: dict[str, int] = {}  # last token of each request that the step before has drawn one for

    def fill(self, step: StepInput) -> None:
        """Make of a detached step what it would have been without looking ahead."""
        # A step that fails leaves nothing to go on from.
        drawn, self._drawn = self._drawn, {}
        for row in step.rows:
            if row.awaits_token:
                row.output_token_ids.append(drawn[row.request_id])
                row.awaits_token = False

    def take(self, step: StepInput, output: StepOutput) -> None:
        """Keep what the step has drawn."""
        self._drawn = {row.request_id: ids[-1] for row, ids in zip(step.rows, output.token_ids, strict=True) if ids}


def detach(step: StepInput) -> StepInput:
    """A copy that does not change with the requests until it is computed; prompts never change."""
    rows = [
        dataclasses.replace(row, output_token_ids=row.output_token_ids.copy(), block_ids=row.block_ids.copy())
        for row in step.rows
    ]
    return StepInput(rows)
