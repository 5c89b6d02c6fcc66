"""min_p, top_k and top_p: which tokens a draw chooses from (steps 7 and 8 of the sampler's order)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.sampling.ranking import largest_ids

if TYPE_CHECKING:  # the sampling kernels' truth uses `keep`, and needs no messages
    from engine.messages import SamplingParams

FIRST_LOOK = 1024  # a nucleus is hardly ever wider, and sorting a whole vocabulary is slow


def truncates(sampling: SamplingParams) -> bool:
    """Whether the request restricts what is drawn from."""
    return sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0


def kept_ids(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Ids that stay of logits[V] (after temperature), ascending; at least one."""
    return keep(logits, sampling.top_k, sampling.top_p, log_min_p(sampling))


def log_min_p(sampling: SamplingParams) -> float:
    """How far below the likeliest a logit may lie; -inf: any distance."""
    return math.log(sampling.min_p) if sampling.min_p > 0.0 else float("-inf")


def keep(logits: Tensor, top_k: int, top_p: float, log_min_p: float) -> Tensor:
    """The same from the bare numbers; top_k 0, top_p 1 and log_min_p -inf leave all."""
    if log_min_p > float("-inf"):
        floor = logits.max() + log_min_p
        logits = logits.masked_fill(logits < floor, float("-inf"))
    order = largest_ids(logits, top_k) if top_k > 0 else None
    if top_p < 1.0:
        order = _nucleus(logits, order, top_p)
    if order is None:
        return (logits > float("-inf")).nonzero().flatten()
    order = order[(logits[order] > float("-inf")).nonzero().flatten()]
    return torch.sort(order).values


def _nucleus(logits: Tensor, order: Tensor | None, top_p: float) -> Tensor:
    """The shortest run of the likeliest ids whose probability reaches top_p; `order` is what top_k left."""
    weights = (logits - logits.max()).double().exp_()
    if order is not None:
        return _reach(order, weights, weights[order].sum() * top_p)
    wanted = weights.sum() * top_p
    first = largest_ids(logits, FIRST_LOOK)
    if weights[first].sum() < wanted:
        first = largest_ids(logits, logits.shape[0])
    return _reach(first, weights, wanted)


def _reach(order: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    taken = weights[order].cumsum(0)
    return order[: int((taken < wanted).sum()) + 1]
