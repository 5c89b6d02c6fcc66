"""Which tokens a request may not produce now, and what is added to those it may: step 3 of the sampler's order."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.step import StepRow

NEVER = float("-inf")


def apply_masks_(logits: Tensor, row: StepRow, eos_token_ids: frozenset[int]) -> None:
    """Allowed ids, bad words, min_tokens, then logit_bias, on logits[V] in place."""
    sampling = row.sampling
    allowed = sampling.allowed_token_ids
    if allowed:
        _keep_only_(logits, allowed)
    banned = _banned_ids(row, eos_token_ids)
    # What is allowed wins over what is banned: some token has to come out.
    if banned and not (allowed and banned.issuperset(allowed)):
        logits[torch.tensor(sorted(banned), device=logits.device)] = NEVER
    if sampling.logit_bias:
        ids = torch.tensor(list(sampling.logit_bias), device=logits.device)
        logits[ids] += torch.tensor(list(sampling.logit_bias.values()), dtype=logits.dtype, device=logits.device)


def has_masks(row: StepRow) -> bool:
    """Whether `apply_masks_` has anything to do."""
    sampling = row.sampling
    return bool(
        sampling.allowed_token_ids
        or sampling.bad_words_token_ids
        or sampling.logit_bias
        or len(row.output_token_ids) < sampling.min_tokens
    )


def _keep_only_(logits: Tensor, allowed: list[int]) -> None:
    ids = torch.tensor(allowed, device=logits.device)
    kept = logits[ids]
    logits.fill_(NEVER)
    logits[ids] = kept


def _banned_ids(row: StepRow, eos_token_ids: frozenset[int]) -> set[int]:
    banned = {run[-1] for run in row.sampling.bad_words_token_ids or () if _completes(run, row.output_token_ids)}
    # A grammar's mask has settled when to stop: it knows whether there is anything else to say.
    if len(row.output_token_ids) < row.sampling.min_tokens and row.token_mask is None:
        banned.update(eos_token_ids, row.sampling.stop_token_ids)
    return banned


def _completes(run: list[int], output: list[int]) -> bool:
    """Whether the output ends with all of the banned run but its last token."""
    prefix = len(run) - 1
    return bool(run) and (prefix == 0 or output[-prefix:] == run[:prefix])
