"""Rows of the embedding table on a CPU: of the mapped tensor, or of a packed head that the table is tied to."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.embedding import reference
from engine.kernels.embedding.reference import EmbeddingTable
from engine.kernels.native.packing import PackedWeight, unpack_rows, wrap
from engine.kernels.packed import PackedTensor


def prepare_embedding(
    weight: Tensor | PackedTensor | PackedWeight, dtype: torch.dtype, device: torch.device
) -> EmbeddingTable | PackedWeight:
    """Keep the mapped tensor or the packed weight."""
    if isinstance(weight, PackedTensor):
        return wrap(weight, None)
    return weight if isinstance(weight, PackedWeight) else reference.prepare_embedding(weight, dtype, device)


def embedding(token_ids: Tensor, table: EmbeddingTable | PackedWeight) -> Tensor:
    """Rows of token_ids[T] as [T, K]; float32 from a packed table."""
    if isinstance(table, PackedWeight):
        return unpack_rows(table, token_ids)
    return reference.embedding(token_ids, table)
