"""A request's mailbox in the client: what came for it and was not read yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine.errors import EngineError
from engine.messages import RequestOutput, merge_outputs

# Gets an output for which the consumer waits, before he is woken, and says whether it has dealt with it.
Listener = Callable[[RequestOutput], bool]


class Mailbox:
    """What a request's consumer has not read yet: at most one output, and an error behind it."""

    __slots__ = ("_error", "_listener", "_output", "_waiter", "is_aborted")

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener
        self.is_aborted = False  # the engine has been told to end the request
        self._output: RequestOutput | None = None
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Keep an output, merged with one that was not read yet."""
        waiter = self._waiter
        if self._output is not None:
            merge_outputs(self._output, output)
        elif self._listener is None or waiter is None or waiter.done() or not self._listener(output):
            self._output = output
        else:
            return
        self._wake()

    def fail(self, error: EngineError) -> None:
        """Nothing more will come."""
        self._error = error
        self._wake()

    async def get(self) -> RequestOutput:
        """Wait for output; raises the error once everything before it was read."""
        while self._output is None:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        output, self._output = self._output, None
        return output

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
