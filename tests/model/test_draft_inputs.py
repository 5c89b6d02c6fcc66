"""Rows with drafts, flattened: which tokens are computed, where they go, whose logits are wanted."""

from __future__ import annotations

import torch

from engine.messages import SamplingParams
from engine.runner.inputs import make_arrays, make_inputs
from engine.step import StepInput, StepRow

SAMPLING = SamplingParams(max_tokens=9, seed=0)
CPU = torch.device("cpu")


def make_step() -> StepInput:
    drafted = StepRow("d", [20, 21], [22, 23], 3, 3, [7, 3], SAMPLING, True, draft_token_ids=[24, 25])
    first = StepRow("f", [40, 41, 42], [], 2, 2, [4], SAMPLING, True, draft_token_ids=[43])
    return StepInput(
        [
            StepRow("p", [10, 11, 12, 13], [], 1, 2, [5], SAMPLING, False),
            drafted,
            StepRow("o", [30], [31], 1, 1, [6], SAMPLING, True),
            first,
        ]
    )


def test_drafts_follow_the_last_known_token() -> None:
    inputs = make_inputs(make_step(), 4, CPU)
    assert inputs.token_ids.tolist() == [11, 12, 23, 24, 25, 31, 42, 43]
    assert inputs.batch.positions.tolist() == [1, 2, 3, 4, 5, 1, 2, 3]
    assert inputs.batch.slot_mapping.tolist() == [21, 22, 31, 12, 13, 25, 18, 19]
    assert inputs.batch.seq_lens.tolist() == [3, 6, 2, 4]
    assert inputs.sample_rows.tolist() == [2, 3, 4, 5, 6, 7]


def test_a_step_with_a_draft_is_no_decode_step() -> None:
    """Captured graphs hold one token a row."""
    rows = make_step().rows
    assert not make_arrays(StepInput(rows[1:]), 4).is_decode
    assert not make_arrays(StepInput(rows[1:2]), 4).is_decode
    assert make_arrays(StepInput(rows[2:3]), 4).is_decode
