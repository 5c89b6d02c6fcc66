"""The API workers' HTTP parser, with the one answer that it gives itself in the OpenAI envelope."""

from __future__ import annotations

import json
import uuid

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from appliance.errors import InvalidRequestError


class HttpProtocol(HttpToolsProtocol):
    """What is HTTP for nginx and not for the parser (a method, a byte in a path or header) is a 400 like any other."""

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
