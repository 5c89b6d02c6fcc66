"""The likeliest tokens, equals in order of their ids: what torch.topk leaves undefined, the API must not."""

from __future__ import annotations

import torch
from torch import Tensor


def largest_ids(values: Tensor, count: int) -> Tensor:
    """Ids of the `count` largest of values[V], best first, the lower id first among equals."""
    count = min(count, values.shape[0])
    candidates = torch.arange(values.shape[0], device=values.device)
    if count < values.shape[0]:
        threshold = torch.topk(values, count).values[-1]
        candidates = (values >= threshold).nonzero().flatten()
    order = torch.sort(values[candidates], descending=True, stable=True).indices
    return candidates[order[:count]]
