"""What the sampling ops are told about their rows; `engine.sampling.device` fills it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DrawRows:
    """How each of R rows picks its token; tensors on the device."""

    temperature: Tensor  # float32 [R]; 0: the likeliest token
    top_k: Tensor  # int32 [R]; 0: all
    top_p: Tensor  # float32 [R]; 1: all
    log_min_p: Tensor  # float32 [R]; logarithm of min_p; -inf: all
    keys: Tensor  # int64 [R, 2], `engine.sampling.noise.row_keys` of the row's seed and position
    truncates: bool  # whether any row has a top_k, top_p or min_p


@dataclass(frozen=True, slots=True)
class SeenTokens:
    """Which tokens each of R rows has seen, each once, and what they cost."""

    starts: Tensor  # int32 [R + 1], row r owns ids[starts[r] : starts[r + 1]]
    ids: Tensor  # int32 [n]
    counts: Tensor  # int32 [n], how often in the output; 0: in the prompt only
    repetition: Tensor  # float32 [R]
    frequency: Tensor  # float32 [R]
    presence: Tensor  # float32 [R]


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafted tokens of R rows."""

    starts: Tensor  # int32 [R + 1], row r owns ids[starts[r] : starts[r + 1]]
    ids: Tensor  # int64 [n]
    longest: int  # most drafts of a row
