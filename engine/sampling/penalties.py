"""Repetition, frequency and presence penalties: step 4 of the sampler's order."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.step import StepRow


def has_penalties(row: StepRow) -> bool:
    """Whether `apply_penalties_` has anything to do."""
    sampling = row.sampling
    return sampling.repetition_penalty != 1.0 or sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0


def apply_penalties_(logits: Tensor, row: StepRow) -> None:
    """On logits[V] in place: repetition over prompt and output, frequency and presence over the output."""
    sampling = row.sampling
    if sampling.repetition_penalty != 1.0:
        seen = np.unique(np.array(row.prompt_token_ids + row.output_token_ids, dtype=np.int64))
        _apply_repetition_(logits, torch.from_numpy(seen).to(logits.device), sampling.repetition_penalty)
    if row.output_token_ids and (sampling.frequency_penalty or sampling.presence_penalty):
        ids, counts = np.unique(np.array(row.output_token_ids, dtype=np.int64), return_counts=True)
        cost = counts.astype(np.float32) * sampling.frequency_penalty + sampling.presence_penalty
        logits[torch.from_numpy(ids).to(logits.device)] -= torch.from_numpy(cost).to(logits)


def _apply_repetition_(logits: Tensor, seen: Tensor, penalty: float) -> None:
    values = logits[seen]
    logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
