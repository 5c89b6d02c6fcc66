"""Linear layers on a GPU: our norm and activation around the vendor's matrix product.

The product itself is cuBLAS, through torch: a pointer kernel in Triton reaches 60-75 % of it on Hopper and one with
descriptors 80-90 % (design figures, not measured by us), and cuBLAS adds the residual or the bias in its epilogue for
free. What it does not do is fused here: RMSNorm before it, SwiGLU after it. The price is that cuBLAS picks its
kernel by the number of rows, so bits of a row depend on the batch; `engine.kernels.linear.invariant` is the
implementation where they don't. Quantized weights go to our own kernels (`engine.kernels.quantized`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.chip import chip_of
from engine.kernels.gated.kernel import silu_mul
from engine.kernels.linear import reference
from engine.kernels.linear.reference import LinearWeight
from engine.kernels.norm.kernel import rms_norm
from engine.kernels.packed import PackedTensor
from engine.kernels.quantized.kernel import quantized_matmul
from engine.kernels.quantized.weights import QuantizedWeight, Scheme, make_from_packed

Weight = LinearWeight | QuantizedWeight


def prepare_linear(
    weight: Tensor | PackedTensor | QuantizedWeight, bias: Tensor | None, dtype: torch.dtype, device: torch.device
) -> Weight:
    """Copy [N, K] to the device in the activations' type. Quantized weights keep their codes, packed for a CPU or not;
    float8 becomes the activations' type on a GPU that does not multiply it."""
    found = make_from_packed(weight, device) if isinstance(weight, PackedTensor) else weight
    if isinstance(found, QuantizedWeight) and (found.scheme is not Scheme.FP8 or chip_of(device).has_fp8):
        return found.to(device, dtype, bias)
    return reference.prepare_linear(weight, bias, dtype, device)


prepare_gate_up = prepare_linear  # gate rows, then up rows: as they are in the file


def norm_linear(x: Tensor, norm_weight: Tensor | None, eps: float, weight: Weight) -> Tensor:
    """rms_norm(x[T, K]) @ W^T + bias as [T, N]; no norm where norm_weight is None."""
    rows = x if norm_weight is None else rms_norm(x, norm_weight, eps)
    if isinstance(weight, QuantizedWeight):
        return quantized_matmul(rows, weight)
    return F.linear(rows, weight.weight, weight.bias)


def norm_linear_swiglu(x: Tensor, norm_weight: Tensor | None, eps: float, weight: Weight) -> Tensor:
    """silu(gate) * up of the projection of x[T, K] to gate and up, as [T, I]."""
    return silu_mul(norm_linear(x, norm_weight, eps, weight))


def linear_add_(residual: Tensor, a: Tensor, weight: Weight) -> None:
    """residual[T, N] += a[T, K] @ W^T + bias; the sum is the matrix product's own epilogue."""
    if isinstance(weight, QuantizedWeight):
        residual.add_(quantized_matmul(a, weight))
        return
    residual.addmm_(a, weight.weight.t())
    if weight.bias is not None:
        residual.add_(weight.bias)
