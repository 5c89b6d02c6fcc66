"""Token ids to the residual stream, and the last hidden state to logits.

Under tensor parallelism each rank has some rows of the vocabulary: `vocabulary` lists those of every rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels import find_op
from engine.layers.build import Build
from engine.layers.cut import cut_rows
from engine.span import Span


class Embedding:
    """The embedding table."""

    def __init__(self, build: Build, name: str, hidden_size: int, vocabulary: Sequence[Span]) -> None:
        self._op = build.ops.embedding
        self._group = build.group
        self._rows = vocabulary[build.group.rank]
        weight = cut_rows(build.weights.get(f"{name}.weight", vocabulary[-1].end, hidden_size), [self._rows])
        self.table = build.ops.prepare_embedding(weight, build.dtype, build.device)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids[T] to [T, hidden]."""
        if self._group.size == 1:
            return self._op(token_ids, self.table)
        own = token_ids - self._rows.start
        is_elsewhere = (own < 0) | (own >= self._rows.size)
        x = self._op(own.masked_fill(is_elsewhere, 0), self.table)
        x.masked_fill_(is_elsewhere[:, None], 0)
        self._group.sum_(x)
        return x


class Head:
    """Final norm and output projection, only for the tokens whose logits somebody wants."""

    def __init__(
        self, build: Build, norm: str, name: str, hidden_size: int, vocabulary: Sequence[Span], eps: float
    ) -> None:
        self._op = build.ops.norm_linear
        self._argmax = find_op("norm_linear_argmax", build.ops.implementation)
        self._group = build.group
        self.norm = build.vector(f"{norm}.weight", hidden_size)
        self.eps = eps
        self._vocabulary = vocabulary
        self._widest = max(rows.size for rows in vocabulary)
        rows = vocabulary[build.group.rank]
        weight = cut_rows(build.weights.get(f"{name}.weight", vocabulary[-1].end, hidden_size), [rows])
        self.weight = build.ops.prepare_linear(weight, None, build.dtype, build.device)

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        """Logits of x[T, hidden] at rows[n] (ascending), float32 [n, vocab]; on every rank: one samples."""
        logits = self._op(_take_rows(x, rows), self.norm, self.eps, self.weight)
        return self._joined(logits).to(torch.float32)

    def pick_likeliest(self, x: Tensor, rows: Tensor) -> list[int]:
        """The token with the largest logit of each of x[T, hidden] at rows[n] (ascending), the lowest of equals."""
        if self._argmax is None or self._group.size > 1:
            found = self(x, rows).argmax(-1)
        else:
            found = self._argmax(_take_rows(x, rows), self.norm, self.eps, self.weight)
        token_ids: list[int] = found.tolist()
        return token_ids

    def _joined(self, logits: Tensor) -> Tensor:
        """[n, rows of this rank] to [n, vocab]."""
        if self._group.size == 1:
            return logits
        parts = self._group.gather(F.pad(logits, (0, self._widest - logits.shape[1])))
        return torch.cat([part[:, : rows.size] for part, rows in zip(parts, self._vocabulary, strict=True)], dim=1)


def _take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x[T, hidden] at rows[n], which ascend: as many as there are tokens are all of them."""
    return x if rows.shape[0] == x.shape[0] else x.index_select(0, rows)
