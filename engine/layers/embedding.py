"""Token ids to the residual stream, and the last hidden state to logits."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.layers.build import Build


class Embedding:
    """The embedding table."""

    def __init__(self, build: Build, name: str, vocab_size: int, hidden_size: int) -> None:
        self._op = build.ops.embedding
        weight = build.weights.get(f"{name}.weight", vocab_size, hidden_size)
        self._table = build.ops.prepare_embedding(weight, build.dtype, build.device)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids[T] to [T, hidden]."""
        return self._op(token_ids, self._table)


class Head:
    """Final norm and output projection, only for the tokens whose logits somebody wants."""

    def __init__(self, build: Build, norm: str, name: str, hidden_size: int, vocab_size: int, eps: float) -> None:
        self._op = build.ops.norm_linear
        self._norm = build.vector(f"{norm}.weight", hidden_size)
        self._eps = eps
        weight = build.weights.get(f"{name}.weight", vocab_size, hidden_size)
        self._weight = build.ops.prepare_linear(weight, None, build.dtype, build.device)

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        """Logits of x[T, hidden] at rows[n], float32 [n, vocab]."""
        return self._op(x.index_select(0, rows), self._norm, self._eps, self._weight).to(torch.float32)
