"""Functions of single values for the reference ops: transcendental ones that depend on the value alone, and rounding.

torch computes most of a tensor with vector instructions and what is left over, at the tensor's end or at a thread's
share of it, with scalar ones, and the two round differently. Here every element takes the vector path: runs are too
short to be shared among threads, and their length is a multiple of any vector.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

RUN = 16384  # half of what torch gives a second thread a share of
VECTOR = 64  # floats; a multiple of two vectors on every CPU
LARGEST_CODE = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def _apply_in_runs_(function_: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    flat = tensor.view(-1)
    rest = flat.numel() % VECTOR
    if rest:
        padded = F.pad(flat, (0, VECTOR - rest))
        flat.copy_(_apply_in_runs_(function_, padded)[: flat.numel()])
        return tensor
    for run in torch.split(flat, RUN):
        function_(run)
    return tensor


def exp_(tensor: Tensor) -> Tensor:
    """e to the power of each element, in place; contiguous float32."""
    return _apply_in_runs_(torch.exp_, tensor)


def silu_(tensor: Tensor) -> Tensor:
    """x · sigmoid(x) of each element, in place; contiguous float32."""
    return _apply_in_runs_(lambda run: F.silu(run, inplace=True), tensor)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last axis; float32 inside, the result in x's dtype."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return scaled.to(x.dtype) * weight


def round_to_codes(values: Tensor, dtype: torch.dtype) -> Tensor:
    """values[..., D] as ``code * scale`` gives them back, with the largest code for the largest of each D; float32."""
    wide, largest_code = values.float(), LARGEST_CODE[dtype]
    largest = wide.abs().amax(-1, keepdim=True)
    scale = torch.where(largest > 0, largest / largest_code, 1.0)
    codes = (wide / scale).clamp(-largest_code, largest_code)
    codes = torch.floor(codes + 0.5) if dtype == torch.int8 else codes.to(dtype).float()
    return codes * scale
