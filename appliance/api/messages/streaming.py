"""Prints a message's events: message_start, each block between its start and stop, message_delta, message_stop."""

from __future__ import annotations

from appliance.api.choice_stream import Batch
from appliance.api.messages.errors import print_error
from appliance.api.messages.serving import MessageJob
from appliance.api.streaming import KEEP_ALIVE, ChunkPrinter, typed_sse
from appliance.errors import APIError

_PING = typed_sse({"type": "ping"})


class MessagePrinter(ChunkPrinter):
    """Prints one request. message_stop, or an error, ends the stream; there is no [DONE]."""

    end = b""

    def __init__(self, job: MessageJob, request_id: str) -> None:
        self._job = job
        self._request_id = request_id
        self._is_open = False

    @property
    def keep_alive(self) -> bytes:
        """A ping, once the message has begun: clients take no other event as the first one."""
        return _PING if self._is_open else KEEP_ALIVE

    def print(self, batch: Batch) -> list[bytes]:
        """All that these events tell."""
        chunks = self._open()
        for _, event in batch:
            chunks += map(typed_sse, self._job.add(event))
        return chunks

    async def print_end(self) -> list[bytes]:
        """Why the message ended, and its usage."""
        stop_reason, stop_sequence = self._job.stop_reason()
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        ending = {"type": "message_delta", "delta": delta, "usage": self._job.usage()}
        return [*self._open(), typed_sse(ending), typed_sse({"type": "message_stop"})]

    def print_error(self, error: APIError) -> list[bytes]:
        """The envelope as an event."""
        return [typed_sse(print_error(error, self._request_id))]

    def _open(self) -> list[bytes]:
        if self._is_open:
            return []
        self._is_open = True
        message = self._job.print()
        message["usage"]["output_tokens"] = 0
        return [typed_sse({"type": "message_start", "message": message})]
