"""A request's mailbox in the client: what came for it and was not read yet."""

from __future__ import annotations

import asyncio

from engine.errors import EngineError
from engine.messages import RequestOutput, merge_outputs


class Mailbox:
    """What a request's consumer has not read yet: at most one output, and an error behind it."""

    __slots__ = ("_error", "_output", "_waiter", "is_aborted")

    def __init__(self) -> None:
        self.is_aborted = False  # the engine has been told to end the request
        self._output: RequestOutput | None = None
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Keep an output, merged with one that was not read yet."""
        if self._output is None:
            self._output = output
        else:
            merge_outputs(self._output, output)
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
