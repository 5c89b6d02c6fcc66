"""Rows of the embedding table on a GPU: one program copies one row, the load's width set by the row's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.embedding import reference
from engine.kernels.embedding.reference import EmbeddingTable
from engine.kernels.packed import PackedTensor

BLOCK = 1024


def prepare_embedding(weight: Tensor | PackedTensor, dtype: torch.dtype, device: torch.device) -> EmbeddingTable:
    """The table on the device, in the activations' type."""
    table = reference.prepare_embedding(weight, dtype, device)
    return EmbeddingTable(table.weight.to(dtype).contiguous(), dtype)


def embedding(token_ids: Tensor, table: EmbeddingTable) -> Tensor:
    """Rows of token_ids[T] (int64 or int32) as [T, K]. Ids must be inside the table."""
    tokens, width = token_ids.shape[0], table.weight.shape[1]
    out = torch.empty(tokens, width, dtype=table.dtype, device=token_ids.device)
    if tokens:
        grid = (tokens, triton.cdiv(width, BLOCK))
        _embedding_kernel[grid](token_ids, table.weight, out, width, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True)
    return out


@triton.jit
def _embedding_kernel(ids_ptr, table_ptr, out_ptr, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    row = tl.load(ids_ptr + token).to(tl.int64)
    values = tl.load(table_ptr + row * width + columns, mask=inside, other=0.0)
    tl.store(out_ptr + token * width + columns, values, mask=inside)
