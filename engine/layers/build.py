"""What a layer needs while the model is built: the ops, where its weights come from, and what to make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from engine.kernels import Ops
from engine.kernels.packed import PackedTensor
from engine.layers.cut import cut_vector
from engine.layers.group import Alone, Group
from engine.span import Span


class WeightSource(Protocol):
    """Named tensors of a baked model."""

    def vector(self, name: str, *shape: int) -> Tensor:
        """A tensor that is no matrix; checked likewise."""

    def get(self, name: str, *shape: int) -> Tensor | PackedTensor:
        """The tensor, checked to have this shape; ConfigError where it is missing or of another shape."""

    def __contains__(self, name: str) -> bool:
        """Whether the model has such a tensor."""


@dataclass(frozen=True, slots=True)
class Build:
    """Passed down while a model is built; layers keep what they need of it."""

    ops: Ops
    weights: WeightSource
    dtype: torch.dtype  # of activations, norm weights and the KV cache
    device: torch.device
    group: Group = field(default_factory=Alone)  # the ranks that share the model

    def bias(self, name: str, size: int, rows: Sequence[Span]) -> Tensor | None:
        """These rows of the bias [size] of layer `name`, None where it has none."""
        if f"{name}.bias" not in self.weights:
            return None
        return cut_vector(self.weights.vector(f"{name}.bias", size), rows)

    def vector(self, name: str, size: int) -> Tensor:
        """A norm's weight as the ops take it."""
        return self.weights.vector(name, size).to(self.device, self.dtype).contiguous()
