"""A step while it is being planned."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.request import Request
from engine.step import StepInput, StepRow


@dataclass(slots=True)
class StepPlan:
    """Rows chosen so far, and what they left of the token budget."""

    budget: int
    rows: dict[str, StepRow] = field(default_factory=dict)

    def add(self, row: StepRow) -> None:
        """Take a row in."""
        self.rows[row.request_id] = row
        self.budget -= row.num_scheduled_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens of the rows."""
        return sum(row.num_scheduled_tokens for row in self.rows.values())

    def add_draft(self, row: StepRow, token_ids: list[int]) -> None:
        """Let a row of the plan compute guesses as well."""
        row.draft_token_ids = token_ids
        row.num_scheduled_tokens += len(token_ids)
        self.budget -= len(token_ids)

    def drop(self, request_id: str) -> None:
        """Take a request's row out again, if it has one: the request lost its blocks to another."""
        row = self.rows.pop(request_id, None)
        if row is not None:
            self.budget += row.num_scheduled_tokens

    def finish(self) -> StepInput | None:
        """The step, or None where there is nothing to compute."""
        return StepInput(list(self.rows.values())) if self.rows else None


@dataclass(slots=True)
class StepStats:
    """What a step did beside its outputs, for the metrics."""

    num_preemptions: int = 0
    num_queried_tokens: int = 0  # known tokens of the requests looked up in the prefix cache
    num_hit_tokens: int = 0
    num_prompt_tokens: int = 0  # computed or found cached for the first time
    num_draft_tokens: int = 0
    draft_lengths_accepted: list[int] = field(default_factory=list)  # one for each draft


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step with what the scheduler has to know of it when its result comes."""

    step: StepInput
    requests: list[Request]  # parallel to its rows
    stats: StepStats
