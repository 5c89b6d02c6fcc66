"""Drafts in a step: whose, how long, and what is left of them afterwards.

They take what everybody else left of the token budget and of the blocks, so a draft never delays or preempts anyone;
blocks that only a wrong draft needed are given back in the same step.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.cache.block_tables import BlockTables
from engine.config import SpeculationConfig
from engine.request import Request
from engine.scheduler.plan import StepPlan, StepStats
from engine.scheduler.step_cost import StepCost
from engine.speculation.speculator import Speculator
from engine.step import StepRow

MAX_SAMPLED = 64  # positions of a step whose logits are made, should max_num_seqs be less: bounds their memory


class DraftPlanner:
    """The scheduler's part of speculation."""

    def __init__(
        self,
        config: SpeculationConfig,
        tables: BlockTables,
        step_cost: StepCost,
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        self._max_rows = config.disable_by_batch_size
        self._max_sampled = max(max_num_seqs, MAX_SAMPLED)
        self._tables = tables
        self._step_cost = step_cost
        self._max_model_len = max_model_len
        self.speculator = Speculator(config)

    def add_drafts(self, plan: StepPlan, requests: Mapping[str, Request]) -> None:
        """Lengthen the rows of a plan that is otherwise finished."""
        num_rows = sum(row.samples for row in plan.rows.values())
        if not num_rows or (self._max_rows is not None and num_rows > self._max_rows):
            return
        room = min(plan.budget, self._max_sampled - num_rows)
        cost = self._step_cost.relative_cost(num_rows, plan.num_tokens)
        for row in plan.rows.values():
            if row.is_decoding and row.sampling.grammar is None:
                room -= self._add_draft(row, requests[row.request_id], plan, room, cost)

    def take(self, request: Request, row: StepRow, num_accepted: int, stats: StepStats) -> None:
        """Note how the row's draft fared and give back the blocks past the request's tokens, which it has by now."""
        # A token that ended the request made void what was right after it.
        request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens)
        self._tables.trim(request)
        self.speculator.record(request, len(row.draft_token_ids), num_accepted)
        stats.num_draft_tokens += len(row.draft_token_ids)
        stats.draft_lengths_accepted.append(num_accepted)

    def _add_draft(self, row: StepRow, request: Request, plan: StepPlan, room: int, cost: float) -> int:
        # One more token comes out of the step than its draft has.
        num_wanted = min(
            row.sampling.max_tokens - request.num_output_tokens - 1, self._max_model_len - request.num_tokens - 1
        )
        draft = self.speculator.propose(request, min(num_wanted, room), cost)
        if draft and not self._tables.grow(request, request.num_tokens + len(draft)):
            draft = draft[: self._tables.num_slots(request) - request.num_tokens]
        if draft:
            plan.add_draft(row, draft)
        return len(draft)
