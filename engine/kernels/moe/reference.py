"""The truth: one expert after the other in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def moe_route(logits: Tensor, top_k: int, renormalizes: bool) -> tuple[Tensor, Tensor]:
    """Router logits[T, E] to the likeliest experts: float32 weights [T, top_k] and int32 ids, best first.

    Weights are the softmax over all experts, divided by their sum where `renormalizes`; the lower id wins a tie.
    """
    probabilities = logits.float().softmax(-1)
    weights, ids = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    weights, ids = weights[:, :top_k], ids[:, :top_k]
    if renormalizes:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.contiguous(), ids.int().contiguous()


def moe_experts(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Sum over a token's experts of weight · down[e] (silu(gate) · up), x[T, K] to [T, K] in x's dtype.

    gate_up[E, 2I, K] holds gate rows, then up rows; down is [E, K, I]; weights float32 and ids int32 [T, top_k].
    """
    out = torch.zeros(x.shape[0], x.shape[1], dtype=torch.float32, device=x.device)
    for rank in range(ids.shape[1]):
        for expert in sorted(set(ids[:, rank].tolist())):
            rows = (ids[:, rank] == expert).nonzero().flatten()
            gate, up = (x[rows].float() @ gate_up[expert].float().t()).to(x.dtype).chunk(2, dim=-1)
            inner = F.silu(gate.float()).to(x.dtype) * up
            out[rows] += (inner.float() @ down[expert].float().t()) * weights[rows, rank, None]
    return out.to(x.dtype)
