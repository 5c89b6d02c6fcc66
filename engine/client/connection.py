"""One connection to one engine process, in the event loop: messages in and out, and the news of its begin and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from engine.frames import FrameReader, pack_frame

RECONNECT_S = 0.1
MAX_QUEUED_BYTES = 256 * 1024 * 1024  # of requests that the engine does not read


class Connection(asyncio.Protocol):
    """From the first attempt to connect until the engine is gone.

    Never reused for the next engine: a request that was queued for the lost one must not be begun by the next, where
    nobody waits for it. It counts as connected once the engine has said something, which one that is stopped does not;
    whoever hangs up before that is called again. ``on_disconnected`` comes after all that was read, and not after
    `close`.
    """

    def __init__(
        self,
        address: str,
        on_connected: Callable[[], None],
        on_message: Callable[[bytes], None],
        on_disconnected: Callable[[], None],
    ) -> None:
        self._address = address
        self._on_connected = on_connected
        self._on_message = on_message
        self._on_disconnected = on_disconnected
        self._reader = FrameReader()
        self._transport: asyncio.WriteTransport | None = None
        self._is_connected = False
        self._is_closed = False
        self._connecting = asyncio.create_task(self._connect())

    async def _connect(self, wait_s: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(wait_s)
            try:
                await loop.create_unix_connection(lambda: self, self._address)
                return
            except OSError:  # nobody there yet
                wait_s = RECONNECT_S

    def send(self, data: bytes) -> bool:
        """Queue a message without waiting; False where the engine does not read."""
        transport = self._transport
        if self._is_closed or transport is None or transport.get_write_buffer_size() > MAX_QUEUED_BYTES:
            return False
        transport.write(pack_frame(data))
        return True

    def close(self) -> None:
        """Drop the connection and all that is queued."""
        self._is_closed = True
        self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's has its methods, not its base
        if self._is_closed:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Called by the loop. What is no message ends the connection, as if the engine had."""
        try:
            messages = self._reader.feed(data)
        except ValueError:
            if self._transport is not None:
                self._transport.abort()
            return
        if messages and not self._is_connected and not self._is_closed:
            self._is_connected = True
            self._on_connected()
        for message in messages:
            if self._is_closed:
                return
            self._on_message(message)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop."""
        if self._is_closed:
            return
        if not self._is_connected:
            self._reader, self._transport = FrameReader(), None
            self._connecting = asyncio.create_task(self._connect(RECONNECT_S))
            return
        self._is_closed = True
        self._on_disconnected()
