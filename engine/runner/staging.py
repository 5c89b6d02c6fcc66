"""One copy to the device a step: all index arrays side by side in pinned memory.

Two host buffers take turns, so that a step may be written while the copy of the one before is still under way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.kernels.batch import StepBatch
from engine.runner.inputs import IntArray, ModelInputs, StepArrays, make_batch, step_indices

ALIGNMENT = 16  # int32s: kernels load from each array's start in wide words
NUM_BUFFERS = 2


class Staging:
    """Host and device memory for the int32 arrays of a step."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        is_gpu = device.type == "cuda"
        self._host = [torch.empty(capacity, dtype=torch.int32, pin_memory=is_gpu) for _ in range(NUM_BUFFERS)]
        self._device = [torch.empty(capacity, dtype=torch.int32, device=device) for _ in range(NUM_BUFFERS)]
        self._turn = 0

    def put(self, arrays: Sequence[IntArray]) -> list[Tensor]:
        """The arrays on the device, in order; valid until the call after the next."""
        self._turn = (self._turn + 1) % NUM_BUFFERS
        host, device = self._host[self._turn], self._device[self._turn]
        written, starts, end = host.numpy(), [], 0
        for array in arrays:
            starts.append(end)
            written[end : end + array.size] = array.reshape(-1)
            end += _aligned(array.size)
        device[:end].copy_(host[:end], non_blocking=True)
        return [
            device[start : start + array.size].view(array.shape) for start, array in zip(starts, arrays, strict=True)
        ]

    def make_inputs(self, arrays: StepArrays, block_size: int) -> ModelInputs:
        """A step's inputs, index tensors int32 throughout."""
        token_ids, sample_rows, *placed = self.put(
            [arrays.token_ids, arrays.sample_rows.astype(np.int32), *step_indices(arrays)]
        )
        batch: StepBatch = make_batch(arrays, placed, block_size)
        return ModelInputs(token_ids, batch, sample_rows)


def staging_capacity(max_tokens: int, max_rows: int, table_width: int) -> int:
    """Int32s that the biggest step needs."""
    per_token, per_row = 4 * _aligned(max_tokens), 2 * _aligned(max_rows + 1)
    return per_token + per_row + _aligned(max_rows * table_width)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
