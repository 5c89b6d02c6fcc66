"""The cases that every implementation of the embedding must get right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EmbeddingShape:
    """Look up `tokens` ids in a table [vocab_size, width]."""

    tokens: int
    vocab_size: int
    width: int


def embedding_shapes() -> Iterator[EmbeddingShape]:
    """One token, and more than a vector of them."""
    yield EmbeddingShape(1, 259, 48)
    yield EmbeddingShape(37, 259, 64)
