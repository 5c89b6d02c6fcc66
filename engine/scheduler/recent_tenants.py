"""Which tenants had work lately: who comes every now and then should find the box as if it had never been away."""

from __future__ import annotations

from collections.abc import Iterable

MEMORY_S = 30.0


class RecentTenants:
    """Is told at each step whose requests there are."""

    def __init__(self) -> None:
        self._seen_s: dict[str, float] = {}  # the longest ago first

    @property
    def are_several(self) -> bool:
        """Whether more than one had work lately."""
        return len(self._seen_s) > 1

    def note(self, tenants: Iterable[str], now_s: float) -> None:
        """These have work now."""
        for tenant in tenants:
            self._seen_s.pop(tenant, None)
            self._seen_s[tenant] = now_s
        while self._seen_s and now_s - next(iter(self._seen_s.values())) > MEMORY_S:
            del self._seen_s[next(iter(self._seen_s))]
