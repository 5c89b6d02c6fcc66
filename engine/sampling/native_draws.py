"""Draws on a CPU for the same requests step after step: their parameters stay in memory, only their keys change.

Making a step's tensors anew takes several times as long as the draw of one row (see `engine.runner.native_step`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engine.kernels.native.library import load_library
from engine.messages import SamplingParams
from engine.sampling.noise import row_keys
from engine.sampling.sampler import draw_temperature
from engine.sampling.truncation import log_min_p
from engine.step import StepRow


class NativeDraws:
    """The C++ library's `draw_tokens`, with parameters that are found again."""

    def __init__(self) -> None:
        self._library = load_library()
        self._parameters = _Parameters([])

    def draw(self, logits: Tensor, rows: list[StepRow]) -> list[int]:
        """A token of each row of processed logits[n, V] (float32)."""
        if logits.shape[0] != len(rows) or not logits.is_contiguous():
            raise ValueError(f"logits {tuple(logits.shape)} of {len(rows)} rows are not contiguous, one row for each")
        parameters = self._parameters
        if parameters.sampling != [row.sampling for row in rows]:  # mostly they are the very same objects
            parameters = self._parameters = _Parameters(rows)
        parameters.keys[:] = [row_keys(row.sampling.seed, row.num_output_tokens) for row in rows]
        self._library.draw(logits.data_ptr(), logits.shape[0], logits.shape[1], *parameters.addresses)
        token_ids: list[int] = parameters.drawn.tolist()
        return token_ids


class _Parameters:
    """How some rows pick their tokens, as `engine.kernels.sample.rows.DrawRows` has it, and where the tokens go."""

    def __init__(self, rows: list[StepRow]) -> None:
        self.sampling: list[SamplingParams] = [row.sampling for row in rows]
        self.keys: npt.NDArray[np.int64] = np.zeros((len(rows), 2), dtype=np.int64)
        self.drawn: npt.NDArray[np.int64] = np.zeros(len(rows), dtype=np.int64)
        self._numbers = (
            np.array([draw_temperature(row) for row in rows], dtype=np.float32),
            np.array([max(row.sampling.top_k, 0) for row in rows], dtype=np.int32),
            np.array([row.sampling.top_p for row in rows], dtype=np.float32),
            np.array([log_min_p(row.sampling) for row in rows], dtype=np.float32),
        )
        self.addresses = tuple(array.ctypes.data for array in (*self._numbers, self.keys, self.drawn))
