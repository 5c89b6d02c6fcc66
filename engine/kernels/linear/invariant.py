"""Linear layers on a GPU in batch-invariant mode: as `kernel`, but every product is our own, with one fixed tile."""

from __future__ import annotations

from torch import Tensor

from engine.kernels.gated.kernel import silu_mul
from engine.kernels.linear.kernel import Weight, prepare_gate_up, prepare_linear
from engine.kernels.matmul.kernel import matmul
from engine.kernels.norm.kernel import rms_norm
from engine.kernels.quantized.kernel import quantized_matmul_invariant
from engine.kernels.quantized.weights import QuantizedWeight

__all__ = ["linear_add_", "norm_linear", "norm_linear_swiglu", "prepare_gate_up", "prepare_linear"]


def norm_linear(x: Tensor, norm_weight: Tensor | None, eps: float, weight: Weight) -> Tensor:
    """rms_norm(x[T, K]) @ W^T + bias as [T, N]; no norm where norm_weight is None."""
    return _product(x if norm_weight is None else rms_norm(x, norm_weight, eps), weight, None)


def norm_linear_swiglu(x: Tensor, norm_weight: Tensor | None, eps: float, weight: Weight) -> Tensor:
    """silu(gate) * up of the projection of x[T, K] to gate and up, as [T, I]."""
    return silu_mul(norm_linear(x, norm_weight, eps, weight))


def linear_add_(residual: Tensor, a: Tensor, weight: Weight) -> None:
    """residual[T, N] += a[T, K] @ W^T + bias."""
    residual.copy_(_product(a, weight, residual))


def _product(x: Tensor, weight: Weight, addend: Tensor | None) -> Tensor:
    if isinstance(weight, QuantizedWeight):
        out = quantized_matmul_invariant(x, weight)
        return out if addend is None else out.add_(addend)
    return matmul(x, weight.weight, weight.bias, addend)
