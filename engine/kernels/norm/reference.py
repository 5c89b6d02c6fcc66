"""The truth: RMSNorm in plain torch."""

from __future__ import annotations

from torch import Tensor

from engine.kernels import elementwise


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x[T, K] / sqrt(mean(x²) + eps) · weight[K]; float32 inside, the result in x's dtype."""
    return elementwise.rms_norm(x, weight, eps)


def add_rms_norm_(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual[T, K] += x[T, K], in place; the RMSNorm of the sum."""
    residual.add_(x)
    return elementwise.rms_norm(residual, weight, eps)
