"""The truth: one adapter after the other in plain torch."""

from __future__ import annotations

from torch import Tensor

from engine.kernels.lora.adapters import Adapters
from engine.kernels.moe.grouping import RowGroups


def lora_add_(y: Tensor, x: Tensor, adapters: Adapters, groups: RowGroups) -> None:
    """y[T, N] += scale · x[T, K] A^T B^T of the row's adapter, in place; rows of no group stay as they are.

    `groups` groups the step's rows by adapter (`group_rows`, the number of adapters L as num_groups); it is made once
    a step and serves every layer. y's rows may be part of a wider tensor.
    """
    for adapter in range(groups.num_groups):
        rows = (groups.groups == adapter).nonzero().flatten()
        if rows.numel():
            inner = x[rows].float() @ adapters.a[adapter].float().t()
            update = inner @ adapters.b[adapter].float().t() * adapters.scales[adapter]
            y[rows] = (y[rows].float() + update).to(y.dtype)
