"""Slows down who presents wrong keys: each one from the same address is answered later than the one before.

Only the wrong answer waits; nobody else does, whatever the address. Behind another proxy all its clients are one
address, which makes no difference to those whose keys are right.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from starlette.datastructures import Headers
from starlette.types import Scope

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0
_FORGET_S = 60.0
_MAX_ADDRESSES = 4096
_MAX_WAITING = 256  # answers that are held back at once; more would cost memory and connections


class WrongKeys:
    """What one API worker remembers of the addresses that wrong keys came from."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[float, float]] = OrderedDict()  # delay, and when
        self._num_waiting = 0

    async def slow_down(self, scope: Scope) -> None:
        """Wait before a wrong key is told to be wrong."""
        delay_s = self._next_delay(_get_address(scope))
        if self._num_waiting >= _MAX_WAITING:
            return
        self._num_waiting += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._num_waiting -= 1

    def _next_delay(self, address: str) -> float:
        now_s = time.monotonic()
        delay_s, at_s = self._last.pop(address, (0.0, 0.0))
        is_new = delay_s == 0 or now_s - at_s > _FORGET_S
        delay_s = FIRST_DELAY_S if is_new else min(2 * delay_s, MAX_DELAY_S)
        self._last[address] = delay_s, now_s
        if len(self._last) > _MAX_ADDRESSES:
            self._last.popitem(last=False)
        return delay_s


def _get_address(scope: Scope) -> str:
    """Whom the proxy saw: it adds that at the end, so that a caller cannot choose it."""
    forwarded = Headers(scope=scope).get("x-forwarded-for", "").rpartition(",")[2].strip()
    client = scope.get("client")
    return forwarded or (client[0] if client else "")
