"""Linear layers, each one call of a fused op: norm + projection, norm + SwiGLU, projection + residual.

Under tensor parallelism the first two have some output channels of their matrix, the third the matching input channels:
each rank adds what its own channels contribute, and the sum over all ranks is the layer's result.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.layers.build import Build
from engine.layers.cut import cut_columns, cut_rows
from engine.span import Span


class NormLinear:
    """RMSNorm and a projection to the channels of `rows`; biased where the baked model has a bias."""

    def __init__(
        self, build: Build, norm: str, name: str, in_features: int, out_features: int, rows: Sequence[Span], eps: float
    ) -> None:
        self._op = build.ops.norm_linear
        self.norm = build.vector(f"{norm}.weight", in_features)
        self.eps = eps
        weight = cut_rows(build.weights.get(f"{name}.weight", out_features, in_features), rows)
        bias = build.bias(name, out_features, rows)
        self.weight = build.ops.prepare_linear(weight, bias, build.dtype, build.device)

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, in] to [T, rows]."""
        return self._op(x, self.norm, self.eps, self.weight)


class NormSwiGLU:
    """RMSNorm, gate and up projection in one matrix, silu(gate) * up, for the channels of `inner`."""

    def __init__(
        self, build: Build, norm: str, name: str, in_features: int, out_features: int, inner: Span, eps: float
    ) -> None:
        self._op = build.ops.norm_linear_swiglu
        self.norm = build.vector(f"{norm}.weight", in_features)
        self.eps = eps
        rows = [inner, inner.after(out_features)]
        weight = cut_rows(build.weights.get(f"{name}.weight", 2 * out_features, in_features), rows)
        bias = build.bias(name, 2 * out_features, rows)
        self.weight = build.ops.prepare_gate_up(weight, bias, build.dtype, build.device)

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, in] to [T, inner]."""
        return self._op(x, self.norm, self.eps, self.weight)


class LinearAdd:
    """A projection added to the residual stream, of the input channels of `columns`."""

    def __init__(self, build: Build, name: str, in_features: int, out_features: int, columns: Span) -> None:
        self._op = build.ops.linear_add_
        self._group = build.group
        weight = cut_columns(build.weights.get(f"{name}.weight", out_features, in_features), columns)
        # What is there once, residual and bias, only the first rank adds to.
        bias = build.bias(name, out_features, [Span(0, out_features)]) if self._group.rank == 0 else None
        self.weight = build.ops.prepare_linear(weight, bias, build.dtype, build.device)

    def __call__(self, residual: Tensor, a: Tensor) -> None:
        """residual[T, out] += projection of a[T, columns] of all ranks, in place."""
        if self._group.rank > 0:
            residual.zero_()
        self._op(residual, a, self.weight)
        self._group.sum_(residual)
