"""Chat templates that requests bring with them: few are rendered at once, and few wait for that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from appliance.api.request_record import get_record
from appliance.errors import UnavailableError
from appliance.text.template_process import render_apart
from appliance.text.template_renderer import Rendering

MAX_AT_ONCE = 2
MAX_WAITING = 8
MAX_OF_A_KEY = (MAX_AT_ONCE + MAX_WAITING) // 2


class _Key:
    """What is there of one key; only one of these waits with those of others, so keys take turns."""

    def __init__(self, max_at_once: int) -> None:
        self.places = asyncio.Semaphore(max_at_once)
        self.num_there = 0


class OwnTemplates:
    """What one API worker renders of them. One key cannot take all places, nor wait in all of the queue."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._keys: dict[str, _Key] = {}

    async def render(self, rendering: Rendering) -> str:
        """As `render_apart`. Raises UnavailableError where too many wait, ClientDisconnect when the client is gone."""
        record = get_record()
        with self._admitted(record.state.get("key_name", "") if record else "") as key:
            work = self._render(key, rendering)
            return await (_while_there(record.receive, work) if record and record.receive else work)

    async def _render(self, key: _Key, rendering: Rendering) -> str:
        async with key.places, self._places:
            return await render_apart(rendering)

    @contextlib.contextmanager
    def _admitted(self, name: str) -> Iterator[_Key]:
        key = self._keys.get(name) or _Key(1 if name else MAX_AT_ONCE)
        most = MAX_OF_A_KEY if name else MAX_AT_ONCE + MAX_WAITING
        num_there = sum(other.num_there for other in self._keys.values())
        if key.num_there >= most or num_there >= MAX_AT_ONCE + MAX_WAITING:
            raise UnavailableError("too many requests that bring a chat_template are waiting", retry_after_s=5.0)
        self._keys[name] = key
        key.num_there += 1
        try:
            yield key
        finally:
            key.num_there -= 1
            if not key.num_there:
                del self._keys[name]


async def _while_there(receive: Receive, work: Coroutine[Any, Any, str]) -> str:
    """What `work` returns. The request's body must have been read, so that all that can come is the client's end."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_see_leave(receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect()
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _see_leave(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
