"""The API workers' side of HTTP: what uvicorn's does, and two things more.

The one answer that it gives itself is in the OpenAI envelope, and the app may write to a client without a task.
"""

from __future__ import annotations

import json
import uuid

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from appliance.api.body_writer import EXTENSION
from appliance.errors import InvalidRequestError


class ChunkWriter:
    """The `BodyWriter` of one request: does what uvicorn's ``send`` does with a part of a body that has no length."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._transport = cycle.transport

    def is_ready(self) -> bool:
        """Not before the head was sent, with which the encoding is decided."""
        cycle = self._cycle
        is_open = cycle.chunked_encoding and not (cycle.response_complete or cycle.disconnected)
        return bool(is_open) and not self._flow.write_paused

    def write(self, body: bytes) -> None:
        """One chunk."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))


class HttpProtocol(HttpToolsProtocol):
    """What is HTTP for nginx and not for the parser (a method, a byte in a path or header) is a 400 like any other."""

    def on_headers_complete(self) -> None:
        """The request's task, which begins later, finds its body writer in the scope."""
        super().on_headers_complete()
        self.scope["extensions"] = {EXTENSION: {"writer": ChunkWriter(self.cycle)}}

    def send_400_response(self, msg: str) -> None:
        """Answer and close: where the next request would begin nobody knows."""
        error = InvalidRequestError("This is not a valid HTTP request.", code="bad_request")
        body = json.dumps(error.envelope()).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {uuid.uuid4().hex}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
