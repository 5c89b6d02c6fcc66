"""Log-probabilities for the caller: of the raw distribution, before temperature, penalties, bias and masks."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.messages import TokenLogprobs
from engine.sampling.ranking import largest_ids


def make_token_logprobs(
    logits: Tensor, token_id: int, count: int, extra_token_ids: list[int] | None = None
) -> TokenLogprobs:
    """Of raw logits[V] float32: the chosen token's logprob and rank, and the `count` likeliest (-1: all), best first.

    `extra_token_ids` come after those, in the caller's order, where they are not among them.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs[token_id]
    rank = int((logprobs > chosen).sum()) + 1
    top_ids = _top_ids(logprobs, count)
    listed = set(top_ids)
    top_ids += [extra for extra in dict.fromkeys(extra_token_ids or ()) if extra not in listed]
    values = logprobs[torch.tensor(top_ids, dtype=torch.int64, device=logits.device)].tolist()
    return TokenLogprobs(token_id, float(chosen), rank, list(zip(top_ids, values, strict=True)))


def _top_ids(logprobs: Tensor, count: int) -> list[int]:
    if count == 0:
        return []
    ids: list[int] = largest_ids(logprobs, logprobs.shape[0] if count < 0 else count).tolist()
    return ids
