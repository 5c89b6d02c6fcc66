"""What a layer needs while the model is built: the ops, where its weights come from, and what to make of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.kernels import Ops


class WeightSource(Protocol):
    """Named tensors of a baked model."""

    def get(self, name: str, *shape: int) -> Tensor:
        """The tensor, checked to have this shape; ConfigError where it is missing or of another shape."""

    def find(self, name: str, *shape: int) -> Tensor | None:
        """The same, None where the model has no such tensor."""


@dataclass(frozen=True, slots=True)
class Build:
    """Passed down while a model is built; layers keep what they need of it."""

    ops: Ops
    weights: WeightSource
    dtype: torch.dtype  # of activations, norm weights and the KV cache
    device: torch.device

    def vector(self, name: str, size: int) -> Tensor:
        """A norm's weight as the ops take it."""
        return self.weights.get(name, size).to(self.device, self.dtype).contiguous()
