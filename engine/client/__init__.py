"""The API worker's end of the engine's socket: one asyncio client, one reader, one mailbox a request. No torch.

A consumer that reads slowly finds its outputs merged in its mailbox, so nothing grows. When the engine goes away all
iterators in flight raise EngineLostError, after what was already received; the client then reconnects by itself.
What to do about a lost engine (resubmit) is `appliance.generation`'s business.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from engine.client.connection import Connection
from engine.client.mailbox import Listener, Mailbox
from engine.errors import EngineError, EngineLostError, EngineUnavailableError
from engine.messages import (
    AbortRequest,
    EngineInfo,
    EngineReply,
    EngineRequest,
    GenerateRequest,
    InfoRequest,
    MetricsReply,
    MetricsRequest,
    Outputs,
    Ping,
    RequestOutput,
    ResetPrefixCacheReply,
    ResetPrefixCacheRequest,
    decode_reply,
    encode,
)
from engine.socket_address import make_address

__all__ = ["EngineClient", "Listener"]

logger = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.1

_Reply = TypeVar("_Reply", EngineInfo, MetricsReply, ResetPrefixCacheReply)


class EngineClient:
    """Talks to one engine. Build it in the event loop's process, `start` it in the loop, `close` it at the end.

    ``connect_timeout_s`` bounds how long a call waits for an engine that is not there; counted from when it went
    away, so that later calls fail at once. ``engine_timeout_s`` declares an engine lost that is connected but silent
    (it sends something every second); None never does.
    """

    def __init__(
        self, socket_path: Path, *, connect_timeout_s: float = 0.5, engine_timeout_s: float | None = None
    ) -> None:
        self._address = make_address(socket_path)
        self._connect_timeout_s = connect_timeout_s
        self._engine_timeout_s = engine_timeout_s
        self._numbers = itertools.count(1)
        self._mailboxes: dict[str, Mailbox] = {}
        self._calls: dict[int, asyncio.Future[EngineReply]] = {}
        self._connected = asyncio.Event()
        self._engine_id: str | None = None
        self._was_ready = False
        self._down_since_s = 0.0
        self._heard_at_s = 0.0
        self._connection: Connection | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def was_ready(self) -> bool:
        """Whether an engine was ever heard to take requests: one that is away now is expected back."""
        return self._was_ready

    async def start(self) -> None:
        """Begin to connect; does not wait for the engine."""
        self._loop = asyncio.get_running_loop()
        self._down_since_s = self._loop.time()
        self._connect()
        if self._engine_timeout_s is not None:
            self._watch(self._engine_timeout_s)

    async def close(self) -> None:
        """Close the socket; iterators in flight raise EngineUnavailableError, and the engine aborts their requests."""
        if self._connection is None:
            return
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._asking is not None:
            self._asking.cancel()
        self._disconnect(EngineUnavailableError, "the client was closed")
        self._connection = None

    async def submit(
        self, request: GenerateRequest, listener: Listener | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generate: yields outputs until one has a finish_reason. Closing the iterator early aborts the request.

        What ``listener`` deals with is not yielded. It must leave the last output alone, and raise nothing.

        Raises EngineUnavailableError where the request was not begun, EngineLostError where its engine went away.
        """
        await self._wait_connected()
        # Ids are made unique here: an aborted request's last output must not end a new one of the same id.
        wire_id = f"{request.request_id}#{next(self._numbers)}"
        self._send(msgspec.structs.replace(request, request_id=wire_id, origin_id=request.request_id))
        mailbox = self._mailboxes[wire_id] = Mailbox(listener)
        is_finished = False
        try:
            while not is_finished:
                output = await mailbox.get()
                output.request_id = request.request_id
                is_finished = output.finish_reason is not None
                if output.unavailable:
                    raise EngineUnavailableError(output.error)
                yield output
        finally:
            # A mailbox that is no longer listed belonged to a lost engine.
            if self._mailboxes.pop(wire_id, None) is not None and not (is_finished or mailbox.is_aborted):
                self._send_abort([wire_id])

    async def abort(self, request_ids: Iterable[str], finish_reason: Literal["abort", "stop"] = "abort") -> None:
        """End these requests; their iterators get an output with that finish_reason. Unknown ids are ignored."""
        wanted = set(request_ids)
        wire_ids = [wire_id for wire_id in self._mailboxes if wire_id.rpartition("#")[0] in wanted]
        if wire_ids:
            for wire_id in wire_ids:
                self._mailboxes[wire_id].is_aborted = True
            self._send_abort(wire_ids, finish_reason)

    async def info(self, timeout_s: float = 2.0) -> EngineInfo:
        """State and facts; answered while the engine is loading, too. Raises EngineUnavailableError."""
        return await self._call(InfoRequest, EngineInfo, timeout_s)

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when requests are taken; raises EngineUnavailableError when that takes too long.

        However many wait, only one of them asks: an engine that loads has better things to do than to answer.
        """
        asking = self._asking
        if asking is None or asking.done():
            asking = self._asking = asyncio.create_task(self._ask_until_ready())
        await asyncio.wait([asking], timeout=max(timeout_s, 0.0))
        if not asking.done() or asking.cancelled():
            raise EngineUnavailableError(f"the engine was not ready within {timeout_s:g} s")

    async def _ask_until_ready(self) -> None:
        while True:
            try:
                if (await self.info()).is_ready:
                    return
            except EngineUnavailableError:
                pass  # nobody there yet
            await asyncio.sleep(_ASK_AGAIN_S)

    async def metrics(self, timeout_s: float = 2.0, *, openmetrics: bool = False) -> str:
        """The engine's metrics in Prometheus' text exposition, or OpenMetrics'. Raises EngineUnavailableError."""
        make = functools.partial(MetricsRequest, openmetrics=openmetrics)
        return (await self._call(make, MetricsReply, timeout_s)).text

    async def reset_prefix_cache(self, timeout_s: float = 10.0) -> bool:
        """Empty the prefix cache; False while blocks are in use. Raises EngineUnavailableError."""
        return (await self._call(ResetPrefixCacheRequest, ResetPrefixCacheReply, timeout_s)).success

    async def _call(self, make: Callable[[int], EngineRequest], kind: type[_Reply], timeout_s: float) -> _Reply:
        call_id = next(self._numbers)
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_connected()
                self._send(make(call_id))
                future = self._calls[call_id] = self._loop.create_future()
                reply = await future
        except TimeoutError:
            raise EngineUnavailableError(f"the engine did not answer within {timeout_s:g} s") from None
        finally:
            self._calls.pop(call_id, None)
        if not isinstance(reply, kind):
            raise EngineUnavailableError(f"the engine answered with {type(reply).__name__}, not {kind.__name__}")
        return reply

    async def _wait_connected(self) -> None:
        if self._connected.is_set():
            return
        if self._connection is None:
            raise EngineUnavailableError("the client is not started, or closed")
        try:
            async with asyncio.timeout_at(self._down_since_s + self._connect_timeout_s):
                await self._connected.wait()
        except TimeoutError:
            raise EngineUnavailableError(f"no engine answers on {self._address}") from None

    def _send(self, request: EngineRequest) -> None:
        if self._connection is None or not self._connection.send(encode(request)):
            raise EngineUnavailableError("the engine takes no requests")

    def _send_abort(self, wire_ids: list[str], finish_reason: Literal["abort", "stop"] = "abort") -> None:
        """Never waits, so that it also works while the consumer's task is being cancelled."""
        try:
            self._send(AbortRequest(wire_ids, finish_reason))
        except EngineUnavailableError as error:
            logger.warning("abort not sent num_requests=%d error=%s", len(wire_ids), error)

    def _connect(self) -> None:
        self._connection = Connection(self._address, self._on_connected, self._on_message, self._on_disconnected)

    def _disconnect(self, kind: type[EngineError], reason: str) -> None:
        """Drop the connection with everything queued in it, and end all that waits for answers on it."""
        if self._connection is not None:
            self._connection.close()
        if self._connected.is_set():
            self._down_since_s = self._loop.time()
            self._connected.clear()
        self._engine_id = None
        mailboxes, self._mailboxes = self._mailboxes, {}
        for mailbox in mailboxes.values():
            mailbox.fail(kind(reason))
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineUnavailableError(reason))

    def _lose_engine(self, reason: str) -> None:
        logger.warning("engine lost address=%s reason=%r num_requests=%d", self._address, reason, len(self._mailboxes))
        self._disconnect(EngineLostError, reason)
        self._connect()

    def _on_connected(self) -> None:
        self._heard_at_s = self._loop.time()
        self._connected.set()

    def _on_disconnected(self) -> None:
        self._lose_engine("the engine closed the connection")

    def _on_message(self, data: bytes) -> None:
        self._heard_at_s = self._loop.time()
        try:
            reply = decode_reply(data)
        except (ValueError, msgspec.MsgspecError) as error:
            logger.warning("malformed message dropped error=%r", str(error))
            return
        if isinstance(reply, Outputs):
            self._sort(reply.outputs)
            return
        if isinstance(reply, (EngineInfo, MetricsReply, ResetPrefixCacheReply)):
            self._resolve(reply.call_id, reply)
        if isinstance(reply, (EngineInfo, Ping)):
            self._was_ready |= reply.is_ready
            self._see_engine(reply.engine_id)

    def _sort(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            mailbox = self._mailboxes.get(output.request_id)
            if mailbox is not None:
                mailbox.put(output)

    def _resolve(self, call_id: int, reply: EngineReply) -> None:
        future = self._calls.get(call_id)
        if future is not None and not future.done():
            future.set_result(reply)

    def _see_engine(self, engine_id: str) -> None:
        if self._engine_id is None:
            self._engine_id = engine_id
            logger.info("engine connected address=%s engine_id=%s", self._address, engine_id)
        elif engine_id != self._engine_id:
            self._lose_engine("the engine was replaced by another")

    def _watch(self, timeout_s: float) -> None:
        if self._connected.is_set() and self._loop.time() - self._heard_at_s > timeout_s:
            self._lose_engine(f"the engine was silent for {timeout_s:g} s")
        self._watchdog = self._loop.call_later(timeout_s / 4, self._watch, timeout_s)
