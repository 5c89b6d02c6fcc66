"""Linear layers, each one call of a fused op: norm + projection, norm + SwiGLU, projection + residual."""

from __future__ import annotations

from torch import Tensor

from engine.layers.build import Build


class NormLinear:
    """RMSNorm and a projection; biased where the baked model has a bias."""

    def __init__(self, build: Build, norm: str, name: str, in_features: int, out_features: int, eps: float) -> None:
        self._op = build.ops.norm_linear
        self.norm = build.vector(f"{norm}.weight", in_features)
        self.eps = eps
        weight = build.weights.get(f"{name}.weight", out_features, in_features)
        bias = build.bias(name, out_features)
        self.weight = build.ops.prepare_linear(weight, bias, build.dtype, build.device)

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, in] to [T, out]."""
        return self._op(x, self.norm, self.eps, self.weight)


class NormSwiGLU:
    """RMSNorm, gate and up projection in one matrix, silu(gate) * up."""

    def __init__(self, build: Build, norm: str, name: str, in_features: int, out_features: int, eps: float) -> None:
        self._op = build.ops.norm_linear_swiglu
        self.norm = build.vector(f"{norm}.weight", in_features)
        self.eps = eps
        weight = build.weights.get(f"{name}.weight", 2 * out_features, in_features)
        bias = build.bias(name, 2 * out_features)
        self.weight = build.ops.prepare_gate_up(weight, bias, build.dtype, build.device)

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, in] to [T, out]."""
        return self._op(x, self.norm, self.eps, self.weight)


class LinearAdd:
    """A projection added to the residual stream."""

    def __init__(self, build: Build, name: str, in_features: int, out_features: int) -> None:
        self._op = build.ops.linear_add_
        weight = build.weights.get(f"{name}.weight", out_features, in_features)
        bias = build.bias(name, out_features)
        self.weight = build.ops.prepare_linear(weight, bias, build.dtype, build.device)

    def __call__(self, residual: Tensor, a: Tensor) -> None:
        """residual[T, out] += projection of a[T, in], in place."""
        self._op(residual, a, self.weight)
