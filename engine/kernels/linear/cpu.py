"""Linear layers by the C++ library: weights packed in blocks of 16 output channels.

Float weights keep the file's own precision (a bfloat16 checkpoint is read as bfloat16: exact, half the bytes) and are
multiplied with float32 activations and sums. What was packed at bake (perhaps quantized) is taken as it is, but for
float8, which becomes bfloat16 here: no CPU multiplies it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.native.library import Epilogue, load_library
from engine.kernels.native.packing import PackedWeight, exact_format, pack, wrap
from engine.kernels.packed import FLOAT8, PackedTensor, unpack


def prepare_linear(
    weight: Tensor | PackedTensor | PackedWeight, bias: Tensor | None, dtype: torch.dtype, device: torch.device
) -> PackedWeight:
    """Pack [N, K]; `dtype` and `device` say nothing here: activations are converted where they are not float32."""
    return _prepare(weight, bias, is_gate_up=False)


def prepare_gate_up(
    weight: Tensor | PackedTensor | PackedWeight, bias: Tensor | None, dtype: torch.dtype, device: torch.device
) -> PackedWeight:
    """Pack gate rows, then up rows [2I, K], interleaved by eights."""
    return _prepare(weight, bias, is_gate_up=True)


def norm_linear(x: Tensor, norm_weight: Tensor | None, eps: float, weight: PackedWeight) -> Tensor:
    """rms_norm(x[T, K]) @ W^T + bias as [T, N]; no norm where norm_weight is None."""
    return _product(x, norm_weight, eps, weight, Epilogue.STORE)


def norm_linear_argmax(x: Tensor, norm_weight: Tensor | None, eps: float, weight: PackedWeight) -> Tensor:
    """The output of each row of x[T, K] that is the largest, int64 [T]; the lowest of equals."""
    if x.dtype != torch.float32:  # rounded outputs have equals that the library would tell apart
        return norm_linear(x, norm_weight, eps, weight).argmax(-1)
    norm, out = _float_norm(norm_weight), torch.empty(x.shape[0], dtype=torch.int64)
    _check_input(x, weight)
    if out.numel():
        load_library().linear_argmax(
            *(x.data_ptr(), x.stride(0), None if norm is None else norm.data_ptr(), eps),
            *(weight.address, x.shape[0], out.data_ptr()),
        )
    return out


def norm_linear_swiglu(x: Tensor, norm_weight: Tensor | None, eps: float, weight: PackedWeight) -> Tensor:
    """silu(gate) * up of the projection of x[T, K] to gate and up, as [T, I]."""
    return _product(x, norm_weight, eps, weight, Epilogue.SWIGLU)


def linear_add_(residual: Tensor, a: Tensor, weight: PackedWeight) -> None:
    """residual[T, N] += a[T, K] @ W^T + bias."""
    if residual.dtype == torch.float32:
        _call(a.float(), None, 0.0, weight, residual, Epilogue.ADD)
    else:
        residual.add_(norm_linear(a, None, 0.0, weight))


def _prepare(weight: Tensor | PackedTensor | PackedWeight, bias: Tensor | None, *, is_gate_up: bool) -> PackedWeight:
    if isinstance(weight, PackedWeight):
        return weight
    if isinstance(weight, PackedTensor):
        if weight.format not in FLOAT8:
            return wrap(weight, bias)
        weight = unpack(weight).bfloat16()
    return pack(weight, exact_format(weight.dtype), bias=bias, is_gate_up=is_gate_up)


def _product(x: Tensor, norm_weight: Tensor | None, eps: float, weight: PackedWeight, epilogue: Epilogue) -> Tensor:
    out = torch.empty(x.shape[0], weight.num_outputs)
    _call(x.float(), norm_weight, eps, weight, out, epilogue)
    return out.to(x.dtype)


def _call(
    x: Tensor, norm_weight: Tensor | None, eps: float, weight: PackedWeight, out: Tensor, epilogue: Epilogue
) -> None:
    _check_input(x, weight)
    if out.shape != (x.shape[0], weight.num_outputs):
        raise ValueError(f"out {tuple(out.shape)} does not fit a weight [{weight.n}, {weight.k}]")
    norm = _float_norm(norm_weight)
    load_library().linear(
        x.data_ptr(),
        x.stride(0),
        None if norm is None else norm.data_ptr(),
        eps,
        weight.address,
        x.shape[0],
        out.data_ptr(),
        out.stride(0),
        epilogue,
    )


def _check_input(x: Tensor, weight: PackedWeight) -> None:
    if x.shape[1] != weight.k or x.stride(1) != 1:
        raise ValueError(f"x {tuple(x.shape)} does not fit a weight [{weight.n}, {weight.k}]")


def _float_norm(norm_weight: Tensor | None) -> Tensor | None:
    return None if norm_weight is None else norm_weight.float()
