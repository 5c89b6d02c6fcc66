"""The truth: gated activations in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_mul(x: Tensor) -> Tensor:
    """x[T, 2I] holds gates, then ups: silu(gate) * up as [T, I]; float32 inside, rounded once after silu."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate.float()).to(x.dtype) * up


def gelu_mul(x: Tensor) -> Tensor:
    """The same with gelu, by its approximation with tanh."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate.float(), approximate="tanh").to(x.dtype) * up
