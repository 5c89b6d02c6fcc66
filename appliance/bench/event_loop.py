"""The event loop that loads are sent from."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
_WANTED_FILES = 65536


def run_event_loop(main: Coroutine[Any, Any, _T]) -> _T:
    """Run on uvloop, which costs the machine less than asyncio's own loop."""
    import uvloop

    _raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def _raise_file_limit() -> None:
    """Each request under way is an open socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, _WANTED_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
