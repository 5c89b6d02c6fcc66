"""Triton's interpreter instead of a GPU, made honest: bf16 products right, fresh outputs poisoned, their edges guarded.

These tests run in a process of their own (`tests/kernel/test_interpreter.py` starts it): whether a kernel is
interpreted or compiled is settled when its module is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if IS_INTERPRETED else ["test_*.py"]
GUARD = 64  # elements before and behind
GUARD_BYTE = 0xA5


def _mend_rounding() -> None:
    """The interpreter (3.9) loses the carry of a mantissa that rounds up to the next power of two."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float
    targets = {
        tl.bfloat16: (torch.bfloat16, torch.int16, np.uint16),
        tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8, np.uint8),
    }

    def rounded(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if source is not tl.float32 or target not in targets:
            return convert(values, source, target, mode)
        dtype, bits, unsigned = targets[target]
        wide = torch.from_numpy(np.ascontiguousarray(values).view(np.float32))
        return wide.to(dtype).view(bits).numpy().view(unsigned)

    interpreter._convert_float = rounded


def _mend_products() -> None:
    """Products of floats in float64, rounded to float32.

    The interpreter (3.6 to 3.9) multiplies the bits of bfloat16 matrices as if they were integers. And it leaves the
    order of a row's sums to a BLAS, where it depends on the row's place in the matrix: on a GPU it doesn't.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    dot = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if not a.dtype.scalar.is_floating() or a.dtype.scalar.primitive_bitwidth == 8:
            return dot(self, a, b, d, *rest)
        product = (_widened(a, tl, np) @ _widened(b, tl, np)).astype(np.float32)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot


def _widened(handle: Any, tl: Any, np: Any) -> Any:
    if handle.dtype.scalar == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return handle.data.astype(np.float64)


if IS_INTERPRETED:
    _mend_rounding()
    _mend_products()


class GuardedMemory:
    """Stands in for torch.empty: every fresh tensor lies between guards and holds NaN, or the guard's bytes."""

    def __init__(self) -> None:
        self._buffers: list[tuple[Tensor, int]] = []

    def empty(self, *size: Any, **options: Any) -> Tensor:
        shape = torch.Size(size[0] if size and isinstance(size[0], tuple | list | torch.Size) else size)
        dtype = options.get("dtype") or torch.get_default_dtype()
        count, width = shape.numel(), dtype.itemsize
        buffer = torch.full(((count + 2 * GUARD) * width,), GUARD_BYTE, dtype=torch.uint8)
        self._buffers.append((buffer, GUARD * width))
        tensor = buffer[GUARD * width : (GUARD + count) * width].view(dtype).view(shape)
        return tensor.fill_(float("nan")) if dtype.is_floating_point and width > 1 else tensor

    def check(self) -> None:
        for buffer, edge in self._buffers:
            assert (buffer[:edge] == GUARD_BYTE).all(), "a kernel wrote before the start of its output"
            assert (buffer[-edge:] == GUARD_BYTE).all(), "a kernel wrote past the end of its output"


@pytest.fixture(autouse=True)
def _guarded_outputs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    memory = GuardedMemory()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", memory.empty)
        patch.setattr(torch, "empty_like", lambda like: memory.empty(like.shape, dtype=like.dtype))
        patch.setattr(
            Tensor, "new_empty", lambda self, *size, **options: memory.empty(*size, **({"dtype": self.dtype} | options))
        )
        yield
    memory.check()
