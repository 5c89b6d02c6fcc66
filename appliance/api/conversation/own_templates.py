"""Chat templates that requests bring with them: few are rendered at once, and few wait for that."""

from __future__ import annotations

import asyncio

from appliance.errors import UnavailableError
from appliance.text.template_process import Rendering, render_apart

MAX_AT_ONCE = 2
MAX_WAITING = 8


class OwnTemplates:
    """What one API worker renders of them."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._num_there = 0

    async def render(self, rendering: Rendering) -> str:
        """As `render_apart`. Raises UnavailableError where too many wait."""
        if self._num_there >= MAX_AT_ONCE + MAX_WAITING:
            raise UnavailableError("too many requests that bring a chat_template are waiting", retry_after_s=5.0)
        self._num_there += 1
        try:
            async with self._places:
                return await render_apart(rendering)
        finally:
            self._num_there -= 1
