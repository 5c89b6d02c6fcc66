"""A matrix that was packed at bake for the CPU kernels: what `engine.models.loader` hands out for it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """The bytes of a [N, K] matrix in the layout of `engine/kernels/native/weights.h`, as mapped from the file."""

    data: Tensor  # uint8
    shape: tuple[int, int]
    format: str  # float32, bfloat16, float16, int8, int4
    is_gate_up: bool  # gate and up rows are interleaved

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return self.data.nbytes
