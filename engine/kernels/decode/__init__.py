"""All decoder layers of a step in one call, where an implementation has that: an optional fast path.

A step of one token is a few milliseconds on a CPU; five calls a layer from Python would be a fifth of it. The result is
the same bits as that of the ops one by one. Models that are more than attention and SwiGLU call the ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.kernels.batch import AttentionSpec, StepBatch

Decode = Callable[[Tensor, list[Any], StepBatch], None]
"""(x[T, hidden], caches of the layers, batch): updates the residual stream x in place and fills the caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """x += o(attention(qkv(norm(x)))); x += down(swiglu(gate_up(norm(x)))); weights as `prepare_…` made them."""

    input_norm: Tensor  # [hidden]
    post_attention_norm: Tensor  # [hidden]
    norm_eps: float
    qkv: Any
    o: Any
    gate_up: Any
    down: Any
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    spec: AttentionSpec
    cos_sin: Tensor


def make_decode(implementation: str, layers: list[LayerParts]) -> Decode | None:
    """The fast path of an implementation; None where there is none: call the ops."""
    if implementation != "cpu" or layers[0].input_norm.dtype != torch.float32:
        return None
    from engine.kernels.decode.cpu import NativeDecode

    return NativeDecode(layers)
