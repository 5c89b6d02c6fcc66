"""The token masks of one step's rows.

A mask takes about 10 µs, so waking other threads pays only for many rows on many cores; on a busy small machine it was
measured to cost ten times what it saves.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from llguidance import LLExecutor

from engine.grammar.state import GrammarState, TokenMask
from engine.request import Request
from engine.step import StepInput, StepRow

MAX_THREADS = 8
MIN_CORES = 8
MIN_PARALLEL_ROWS = 16


class MaskMaker:
    """Gives each row that samples under a grammar its `token_mask`."""

    def __init__(self, vocab_size: int, num_threads: int | None = None) -> None:
        self._num_words = -(-vocab_size // 32)
        self._num_threads = _default_threads() if num_threads is None else num_threads
        self._executor: LLExecutor | None = None

    def add_masks(self, step: StepInput, requests: Sequence[Request]) -> None:
        """`requests` are parallel to the step's rows."""
        wanted = [
            (row, request.grammar)
            for row, request in zip(step.rows, requests, strict=True)
            if row.samples and request.grammar is not None and request.grammar.is_active
        ]
        if not wanted:
            return
        masks = self._fill([state for _, state in wanted])
        for (row, state), mask in zip(wanted, masks, strict=True):
            state.finish_mask_(mask, is_stop_wanted=_is_stop_wanted(row))
            row.token_mask = mask

    def _fill(self, states: list[GrammarState]) -> list[TokenMask]:
        masks = np.zeros((len(states), self._num_words), dtype=np.int32)
        row_bytes = self._num_words * masks.itemsize
        if self._num_threads > 1 and len(states) >= MIN_PARALLEL_ROWS:
            jobs = [(state.matcher, index) for index, state in enumerate(states)]
            self._get_executor().unsafe_compute_mask_ptr(jobs, masks.ctypes.data, row_bytes, len(states))
        else:
            for index, state in enumerate(states):
                state.matcher.unsafe_compute_mask_ptr(masks.ctypes.data + index * row_bytes, row_bytes)
        return list(masks)

    def _get_executor(self) -> LLExecutor:
        if self._executor is None:
            self._executor = LLExecutor(num_threads=self._num_threads)
        return self._executor


def _default_threads() -> int:
    num_cores = len(os.sched_getaffinity(0))
    return min(MAX_THREADS, num_cores // 2) if num_cores >= MIN_CORES else 1


def _is_stop_wanted(row: StepRow) -> bool:
    sampling = row.sampling
    return not sampling.ignore_eos and len(row.output_token_ids) >= sampling.min_tokens
