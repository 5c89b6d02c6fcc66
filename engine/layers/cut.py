"""Parts of weights for a rank of tensor parallelism: views of the mapped file where that can be, copies elsewhere.

What is whole is handed back as it is. Only the part's bytes are read from the file.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kernels.packed import PackedTensor
from engine.kernels.packed_cut import cut_packed_columns, cut_packed_rows
from engine.span import Span, join_adjacent


def cut_rows(weight: Tensor | PackedTensor, spans: Sequence[Span]) -> Tensor | PackedTensor:
    """Output channels of weight[N, K], one span below the other."""
    joined = join_adjacent(spans)
    if joined == [Span(0, weight.shape[0])]:
        return weight
    return cut_packed_rows(weight, joined) if isinstance(weight, PackedTensor) else cut_vector(weight, joined)


def cut_columns(weight: Tensor | PackedTensor, span: Span) -> Tensor | PackedTensor:
    """Input channels of weight[N, K]."""
    if span == Span(0, weight.shape[1]):
        return weight
    if isinstance(weight, PackedTensor):
        return cut_packed_columns(weight, span)
    return weight[:, span.start : span.end].contiguous()


def cut_vector(tensor: Tensor, spans: Sequence[Span]) -> Tensor:
    """Parts of tensor[N, …] along its first axis, one behind the other."""
    parts = [tensor[span.start : span.end] for span in join_adjacent(spans)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
