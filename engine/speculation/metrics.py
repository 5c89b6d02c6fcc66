"""What speculation counts, under the names that vLLM's dashboards read. Without speculation there are none."""

# ruff: noqa: E501 - a metric a line reads better than five lines a metric

from __future__ import annotations

from engine.metric_registry import MetricMaker
from engine.scheduler.plan import StepStats


class SpeculationMetrics:
    """Counts the drafts that were computed."""

    def __init__(self, make: MetricMaker, num_speculative_tokens: int) -> None:
        positions = [str(position) for position in range(num_speculative_tokens)]
        # fmt: off
        self._drafts = make.counter("spec_decode_num_drafts", "Drafts computed.")
        self._draft_tokens = make.counter("spec_decode_num_draft_tokens", "Tokens of these drafts.")
        self._accepted_tokens = make.counter("spec_decode_num_accepted_tokens", "Draft tokens that were right.")
        self._accepted_by_position = list(make.counters("spec_decode_num_accepted_tokens_per_pos", "Draft tokens that were right, by their place in the draft.", "position", positions).values())
        # fmt: on

    def record(self, stats: StepStats) -> None:
        """Count one step's drafts."""
        if not stats.draft_lengths_accepted:
            return
        self._drafts.inc(len(stats.draft_lengths_accepted))
        self._draft_tokens.inc(stats.num_draft_tokens)
        self._accepted_tokens.inc(sum(stats.draft_lengths_accepted))
        for length in stats.draft_lengths_accepted:
            for counter in self._accepted_by_position[:length]:
                counter.inc()
