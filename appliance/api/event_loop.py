"""What would keep the event loop busy for more than a moment runs in a thread, so that every stream goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

INLINE_SIZE = 8_192  # characters, bytes or small values: milliseconds of work at most
T = TypeVar("T")


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Run `work` here if it has little to do, else in a thread."""
    return work() if size <= INLINE_SIZE else await asyncio.to_thread(work)


def estimate_size(value: Any) -> int:
    """Characters of a text, little for a number; what may hold anything counts as much without a closer look."""
    if isinstance(value, str):
        return len(value) + 1
    return INLINE_SIZE + 1 if value and isinstance(value, (dict, list)) else 1
