"""What each tenant may take of a step while several have work: the favoured one all, a greater crowd a few tokens.

A step takes as long as its tokens: so that one tenant's crowd does not make every token of another wait for it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping


class StepShares:
    """Of one step. Without a favoured tenant everybody may take all. ``crowds`` are the requests of each tenant."""

    def __init__(self, favoured: str | None, limit: int, crowds: Mapping[str, int]) -> None:
        self._limit = limit
        self._taken: dict[str, int] = {}
        self._limited = {
            tenant for tenant, count in crowds.items() if favoured is not None and count > crowds[favoured]
        }

    def left(self, tenant: str) -> int:
        """Tokens that the tenant may still take."""
        if tenant not in self._limited:
            return sys.maxsize
        return self._limit - self._taken.get(tenant, 0)

    def is_whole(self, tenant: str) -> bool:
        """Whether the tenant may take all of the step."""
        return tenant not in self._limited

    def is_left(self, tenant: str) -> bool:
        """Whether the tenant may still take anything."""
        return self.left(tenant) > 0

    def take(self, tenant: str, num_tokens: int) -> None:
        """They were planned."""
        self._taken[tenant] = self._taken.get(tenant, 0) + num_tokens
