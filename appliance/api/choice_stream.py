"""All generations of one HTTP request as one stream of (choice index, event), for streamed and collected answers.

One task a generation reads its events, so that one slow prompt does not hold the others up and a waiting reader can
be woken by a timer or by the client's departure without cancelling a generation halfway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from appliance.generation import Generation
from appliance.text.events import Event

_HIGH_WATER = 256
Batch = list[tuple[int, Event]]


class ChoiceStream:
    """Choice ``j`` of generation ``i`` has index ``i * n + j``. Leaving the context aborts what still runs.

    It is its generation's `EventListener` where it may write.
    """

    def __init__(self, generations: Sequence[Generation], n: int) -> None:
        self.generations = generations
        self.n = n
        self._batch: Batch = []
        self._running = len(generations)
        self._error: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._write: Callable[[Batch], None]
        self._can_write: Callable[[], bool]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> ChoiceStream:
        """Submit everything."""
        for number, generation in enumerate(self.generations):
            self._tasks.append(asyncio.create_task(self._pump(number * self.n, generation)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the pumps; each aborts its generation."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def write_with(self, write: Callable[[Batch], None], can_write: Callable[[], bool]) -> None:
        """Have events written where they are read while a reader waits in `get`: no task is woken for them.

        Only where a single choice brings them: what several bring at once is the reader's to put together.
        """
        if len(self.generations) == self.n == 1:
            self._write, self._can_write = write, can_write
            self.generations[0].hand_to(self)

    def is_ready(self) -> bool:
        """Whether the reader waits: nothing that came before may still be on its way."""
        reader = self._reader
        return not (reader is None or reader.done() or self._error is not None) and self._can_write()

    def take(self, index: int, events: list[Event]) -> None:
        """Write events of the only choice; the reader sleeps on."""
        self._write([(index, event) for event in events])

    async def _pump(self, offset: int, generation: Generation) -> None:
        try:
            async with generation:
                async for index, events in generation:
                    if self._error is not None:
                        break  # the whole request is over
                    self._batch += [(offset + index, event) for event in events]
                    self._wake()
                    if len(self._batch) >= _HIGH_WATER:
                        self._room.clear()
                        await self._room.wait()
        except Exception as error:
            self.fail(error)
        self._running -= 1
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Make `get` raise `error` once it has handed out what came before."""
        self._error = self._error or error
        self._wake()

    async def get(self, timeout_s: float | None = None) -> Batch | None:
        """What has happened since the last call: events, [] after `timeout_s` of silence, None at the end.

        Raises what a generation raised, or ClientDisconnect.
        """
        if not self._batch and self._running and self._error is None:
            await self._sleep(timeout_s)
        if isinstance(self._error, ClientDisconnect):
            raise self._error
        if self._batch:
            batch, self._batch = self._batch, []
            self._room.set()
            return batch
        if self._error is not None:
            raise self._error
        return [] if self._running else None

    async def _sleep(self, timeout_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._reader = loop.create_future()
        timer = loop.call_later(timeout_s, self._wake) if timeout_s else None
        try:
            await self._reader
        finally:
            self._reader = None
            if timer is not None:
                timer.cancel()

    def watch(self, receive: Receive) -> None:
        """From now on `get` raises ClientDisconnect when the client is gone. The request's body must have been read."""
        self._tasks.append(asyncio.create_task(self._watch(receive)))

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.fail(ClientDisconnect())
