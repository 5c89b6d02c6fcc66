"""The truth: a torch index."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.packed import PackedTensor, unpack


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """Rows stay in the file's dtype and are widened when they are looked up."""

    weight: Tensor  # [V, K]
    dtype: torch.dtype


def prepare_embedding(weight: Tensor | PackedTensor, dtype: torch.dtype, device: torch.device) -> EmbeddingTable:
    """Keep the mapped tensor (a copy only on another device)."""
    table = unpack(weight) if isinstance(weight, PackedTensor) else weight
    return EmbeddingTable(table.to(device), dtype)


def embedding(token_ids: Tensor, table: EmbeddingTable) -> Tensor:
    """Rows of token_ids[T] as [T, K]."""
    return F.embedding(token_ids, table.weight).to(table.dtype)
