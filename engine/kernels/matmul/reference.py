"""The truth: a torch product."""

from __future__ import annotations

from torch import Tensor


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None) -> Tensor:
    """x[T, K] @ weight[N, K]^T (+ bias[N]) (+ addend[T, N]) as [T, N] in x's dtype; sums are float32."""
    out = x.float() @ weight.float().t()
    if bias is not None:
        out += bias.float()
    if addend is not None:
        out += addend.float()
    return out.to(x.dtype)
