"""A step's `Work` as bytes: int32 throughout, five sizes and the arrays behind them."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np

from engine.runner.forward_pass import Work
from engine.runner.inputs import StepArrays

NUM_SIZES = 5


def encode_work(work: Work) -> bytes:
    """To bytes."""
    arrays = work.arrays
    parts = [
        arrays.token_ids,
        arrays.positions,
        arrays.slots,
        arrays.query_start_loc,
        arrays.seq_lens,
        arrays.block_tables.reshape(-1),
        arrays.sample_rows,
        work.prompt_rows,
    ]
    sizes = [len(arrays.token_ids), *arrays.block_tables.shape, len(arrays.sample_rows), len(work.prompt_rows)]
    return np.concatenate([np.array(sizes), *parts]).astype(np.int32).tobytes()


def decode_work(data: bytes) -> Work:
    """From bytes."""
    values = np.frombuffer(bytearray(data), dtype=np.int32)  # torch wants memory that may be written to
    tokens, rows, width, samples, prompt = values[:NUM_SIZES].tolist()
    lengths = [NUM_SIZES, tokens, tokens, tokens, rows + 1, rows, rows * width, samples, prompt]
    parts = [values[start:end] for start, end in pairwise(accumulate(lengths))]
    token_ids, positions, slots, query_start_loc, seq_lens, block_tables, sample_rows, prompt_rows = parts
    arrays = StepArrays(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        block_tables=block_tables.reshape(rows, width),
        sample_rows=sample_rows.astype(np.int64),
    )
    return Work(arrays, prompt_rows.astype(np.int64))
