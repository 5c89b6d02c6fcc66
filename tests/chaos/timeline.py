"""When something was being broken: what a client may see then, and at no other time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

_NUM_BEFORE = 3
GRACE_S = 5.0  # after a fault is over: connections that it cut are noticed, queues drain


@dataclass
class Window:
    """One fault, from before it struck until the box was whole again."""

    name: str
    takes_connections: bool
    lingers_s: float
    start_s: float
    end_s: float = float("inf")


@dataclass
class Timeline:
    """All faults so far; points in time are of `time.monotonic`."""

    windows: list[Window] = field(default_factory=list)

    @contextlib.contextmanager
    def fault(self, name: str, takes_connections: bool, lingers_s: float = 0.0) -> Iterator[Window]:
        """Around a fault and the recovery from it; its clients may notice `lingers_s` later than others'."""
        window = Window(name, takes_connections, lingers_s, time.monotonic())
        self.windows.append(window)
        try:
            yield window
        finally:
            window.end_s = time.monotonic()

    def excuses_loss(self, since_s: float) -> bool:
        """Whether a connection open from then until now may have been cut."""
        return any(window.takes_connections for window in self._since(since_s))

    def excuses_refusal(self, since_s: float) -> bool:
        """Whether a 503 is honest: something was broken between then and now."""
        return bool(self._since(since_s))

    def describe_since(self, since_s: float) -> str:
        """What was going on, and how long before then each of the last faults was over."""
        going_on = self._since(since_s)
        before = [window for window in self.windows if window not in going_on][-_NUM_BEFORE:]
        over = [f"({window.name} over for {since_s - window.end_s:.1f} s)" for window in before]
        return ", ".join([*over, *(window.name for window in going_on)]) or "nothing"

    def _since(self, since_s: float) -> list[Window]:
        return [window for window in self.windows if window.end_s + GRACE_S + window.lingers_s > since_s]
