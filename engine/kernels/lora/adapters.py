"""The adapters of one linear layer, stacked."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Adapters:
    """y += scale · x A^T B^T for the adapter of a row; ranks are padded with zeros to the largest."""

    a: Tensor  # [L, R, K]
    b: Tensor  # [L, N, R]
    scales: Tensor  # float32 [L]
