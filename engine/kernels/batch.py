"""What an attention op is told about a step and about a layer. Plain data; `engine.runner.inputs` fills it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Where the T tokens of a step belong. Index tensors are contiguous int32 on the model's device.

    Row r owns tokens ``query_start_loc[r] : query_start_loc[r + 1]``, the last tokens of its ``seq_lens[r]``; token j
    of the request lives in slot ``block_tables[r, j // block_size] * block_size + j % block_size``.
    """

    positions: Tensor  # [T]
    slot_mapping: Tensor  # [T] slot that this token's K and V go to
    query_start_loc: Tensor  # [R + 1]
    seq_lens: Tensor  # [R] context length, this step's tokens included
    block_tables: Tensor  # [R, widest table], padded with 0
    block_size: int
    max_query_len: int
    max_seq_len: int
    wanted: Tensor | None = None
    """[n] int32, ascending: tokens whose last hidden states are wanted; None: all. The others may be computed, too."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """A layer's attention, fixed when the model is built."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float  # of the scores, usually head_dim ** -0.5
    sliding_window: int | None  # a token sees itself and the sliding_window - 1 before it; None: everything before it
    norm_eps: float  # of q_norm and k_norm
    soft_cap: float | None = None  # c * tanh(score / c) instead of the score, before the mask (Gemma 2)
