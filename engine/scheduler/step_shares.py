"""What each tenant may take of a step while several have work: the favoured one all, any other a few tokens.

A step takes as long as its tokens: so that one tenant's crowd does not make every token of another wait for it.
"""

from __future__ import annotations

import sys


class StepShares:
    """Of one step. Without a favoured tenant everybody may take all."""

    def __init__(self, favoured: str | None, limit: int) -> None:
        self._favoured = favoured
        self._limit = limit
        self._taken: dict[str, int] = {}

    def left(self, tenant: str) -> int:
        """Tokens that the tenant may still take."""
        if self._favoured is None or tenant == self._favoured:
            return sys.maxsize
        return self._limit - self._taken.get(tenant, 0)

    def take(self, tenant: str, num_tokens: int) -> None:
        """They were planned."""
        self._taken[tenant] = self._taken.get(tenant, 0) + num_tokens
