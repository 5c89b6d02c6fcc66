"""Sampling by the C++ library (native/sampling.h): no sorting of vocabularies, noise only for tokens that may win."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.native.library import load_library
from engine.kernels.sample.rows import DrawRows, SeenTokens


def draw_tokens(logits: Tensor, rows: DrawRows) -> Tensor:
    """A token of each row of processed logits[R, V] (float32), int64 [R]; see the reference."""
    out = torch.empty(logits.shape[0], dtype=torch.int64)
    if out.numel():
        load_library().draw(
            *(_address(logits), logits.shape[0], logits.shape[1]),
            *(_address(rows.temperature), _address(rows.top_k), _address(rows.top_p), _address(rows.log_min_p)),
            *(_address(rows.keys), out.data_ptr()),
        )
    return out


def apply_penalties_(logits: Tensor, seen: SeenTokens) -> None:
    """On logits[R, V] (float32) in place; see the reference."""
    if logits.shape[0]:
        load_library().penalise(
            *(_address(logits), logits.shape[0], logits.shape[1]),
            *(_address(seen.starts), _address(seen.ids), _address(seen.counts)),
            *(_address(seen.repetition), _address(seen.frequency), _address(seen.presence)),
        )


def _address(tensor: Tensor) -> int:
    if not tensor.is_contiguous():
        raise ValueError("the library reads and writes contiguous tensors")
    return tensor.data_ptr()
