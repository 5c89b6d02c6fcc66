"""The event loop that loads are sent from."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def run_event_loop(main: Coroutine[Any, Any, _T]) -> _T:
    """Run on uvloop, which costs the machine less than asyncio's own loop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
