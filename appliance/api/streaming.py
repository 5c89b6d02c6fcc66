"""Server-sent events: headers only once the engine took the request up, a sign of life in silence, an end always.

What is said and how it ends is the protocol's `ChunkPrinter`.
"""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from appliance.api.choice_stream import Batch, ChoiceStream
from appliance.api.error_handlers import as_api_error, encode_error
from appliance.api.request_record import get_record
from appliance.api.stream_interval import Coalescer
from appliance.errors import APIError
from appliance.text.events import Content

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
_encode = msgspec.json.Encoder().encode


def sse(value: Any) -> bytes:
    """One event."""
    return b"data: " + _encode(value) + b"\n\n"


class TextChunk:
    """One event of which only a text changes; everything around that is encoded once.

    ``value`` has an empty text in its only field of the name ``name``.
    """

    def __init__(self, value: Any, name: str) -> None:
        # No string has this in it: there the quotes would be escaped.
        head, field, self._tail = sse(value).rpartition(f'"{name}":""'.encode())
        assert field, f"no empty {name}"
        self._head = head + field[:-2]

    def print(self, text: str) -> bytes:
        """The same as `sse` of the value with this text."""
        return self._head + _encode(text) + self._tail


class TextChunks:
    """Of all choices of a request: ``make_value`` gives a choice's `TextChunk` its value."""

    def __init__(self, make_value: Callable[[int], Any], name: str) -> None:
        self._make_value = make_value
        self._name = name
        self._chunks: dict[int, TextChunk] = {}

    def print(self, batch: Batch) -> list[bytes]:
        """The chunk of a batch that is one text; [] for any other, which has to be printed the general way."""
        if len(batch) != 1:
            return []
        [(index, event)] = batch
        if type(event) is not Content or not event.text:
            return []
        chunk = self._chunks.get(index)
        if chunk is None:
            chunk = self._chunks[index] = TextChunk(self._make_value(index), self._name)
        return [chunk.print(event.text)]


def typed_sse(value: dict[str, Any]) -> bytes:
    """One event that is named as its ``type`` says."""
    return b"event: " + str(value["type"]).encode() + b"\n" + sse(value)


class ChunkPrinter(ABC):
    """Prints a request's events in one protocol's chunks. The defaults are those of chat and completions."""

    end: bytes = DONE  # closes every stream, also after an error

    @property
    def keep_alive(self) -> bytes:
        """Sent in silence."""
        return KEEP_ALIVE

    @abstractmethod
    def print(self, batch: Batch) -> list[bytes]:
        """The chunks for these events; [] where there is nothing to say."""

    @abstractmethod
    async def print_end(self) -> list[bytes]:
        """What follows the last choice's finish."""

    def print_error(self, error: APIError) -> list[bytes]:
        """What a stream says that cannot go on."""
        return [b"data: " + encode_error(error) + b"\n\n"]


@dataclass(frozen=True, slots=True)
class StreamingOptions:
    """Seconds of silence before a sign of life (0 = never), and tokens of a choice that make a chunk."""

    keep_alive_s: float
    interval: int


class EventStreamResponse(Response):
    """Sends what `printer` makes of `stream`. Made by `start`, so errors of the first step have a real status."""

    def __init__(
        self, stream: ChoiceStream, printer: ChunkPrinter, options: StreamingOptions, first: Batch | None
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._stream = stream
        self._printer = printer
        self._first = first
        self._coalescer = Coalescer(options.interval)
        self._keep_alive_s = options.keep_alive_s
        self._sent_at = time.monotonic() if first else -math.inf

    @classmethod
    async def start(
        cls, request: Request, stream: ChoiceStream, printer: ChunkPrinter, options: StreamingOptions
    ) -> EventStreamResponse:
        """Wait for the first events, but no longer than a client may be left in silence.

        Raises what the generations raise: nothing has been sent yet.
        """
        await stream.__aenter__()
        try:
            stream.watch(request.receive)
            first = await stream.get(options.keep_alive_s or None)
        except BaseException:
            await stream.__aexit__(None, None, None)
            raise
        return cls(stream, printer, options, first)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Where the client leaves early everything is aborted and the answer simply ends."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_events(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientDisconnect:
            scope["state"]["client_gone"] = True
        finally:
            await self._stream.__aexit__(None, None, None)

    async def _send_events(self, send: Send) -> None:
        self._send, self._record = send, get_record()
        self._body_writer = self._record.body_writer if self._record else None
        batch = self._first
        if self._body_writer is not None:
            self._stream.write_with(self._write, self._body_writer.is_ready)
        try:
            while batch is not None:
                await self._send_batch(batch)
                batch = await self._stream.get(self._silence_left_s())
            end = await self._printer.print_end()
        except ClientDisconnect:
            raise
        except Exception as error:
            end = [*self._print_rest(), *self._printer.print_error(as_api_error(error))]
        await self._send_body(b"".join(end) + self._printer.end)

    def _print_rest(self) -> list[bytes]:
        """Text that still waited when an error came; the error may be the printer's own."""
        rest = self._coalescer.release_all()
        with contextlib.suppress(APIError):
            return self._printer.print(rest) if rest else []
        return []

    async def _send_batch(self, batch: Batch) -> None:
        """Everything that piled up goes out in one write."""
        body = self._print(batch) if batch else b""
        if not body and self._keep_alive_s and time.monotonic() - self._sent_at >= self._keep_alive_s:
            body = self._printer.keep_alive
        if body:
            await self._send_body(body)
            self._sent_at = time.monotonic()

    async def _send_body(self, body: bytes) -> None:
        if body and self._body_writer is not None and self._body_writer.is_ready():
            self._write_body(body)
        else:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    def _write(self, batch: Batch) -> None:
        if body := self._print(batch):
            self._write_body(body)
            self._sent_at = time.monotonic()

    def _write_body(self, body: bytes) -> None:
        assert self._record is not None
        assert self._body_writer is not None
        self._body_writer.write(body)
        self._record.num_written_bytes += len(body)  # no middleware sees it

    def _print(self, batch: Batch) -> bytes:
        return b"".join(self._printer.print(self._coalescer.join(batch)))

    def _silence_left_s(self) -> float | None:
        if not self._keep_alive_s:
            return None
        # A little late rather than a little early: the comment is due when the timer fires.
        return max(self._sent_at + self._keep_alive_s - time.monotonic(), 0.0) + 0.001
