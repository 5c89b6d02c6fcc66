"""The ranks of tensor parallelism as a layer sees them: what it adds up over all of them, or gathers from them.

Every rank calls the same methods in the same order with tensors of the same shape.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Group(Protocol):
    """The processes that share a model."""

    @property
    def rank(self) -> int:
        """This process, 0 … size - 1."""

    @property
    def size(self) -> int:
        """How many there are."""

    def sum_(self, x: Tensor) -> None:
        """Replace x[…] (contiguous) by its sum over all ranks, the same bits on each."""

    def gather(self, x: Tensor) -> Tensor:
        """x[…] (contiguous) of every rank as [size, …], on each."""


class Alone:
    """A process that has the whole model."""

    rank, size = 0, 1

    def sum_(self, x: Tensor) -> None:
        """Nothing to add."""

    def gather(self, x: Tensor) -> Tensor:
        """One part."""
        return x[None]
