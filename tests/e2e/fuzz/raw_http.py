"""Requests that are hardly HTTP, written to the socket as they are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

METHODS = [
    b"GET",
    b"POST",
    b"PUT",
    b"HEAD",
    b"OPTIONS",
    b"PATCH",
    b"DELETE",
    b"TRACE",
    b"CONNECT",
    b"BREW",
    b"get",
    b"",
]
TARGETS = [b"/", b"*", b"//", b"/v1/models", b"/v1//models", b"/%00", b"/%zz", b"/%2e%2e/", b"/../..", b"/a?b=\xff",
           b"/\xc3\xbc", b"/health;x", b"http://x/version", b"/" + b"a" * 9000, b"/v1/chat/completions", b"/tokenize",
           b"/detokenize", b"/metrics", b"/load", b"/docs", b"/a b", b"/v1/responses/\x01"]  # fmt: skip
VERSIONS = [b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.9", b"http/1.1", b""]
LINES = [b"X-A: \x01", b"X-A: \xff", b"X A: 1", b": 1", b"X-A:", b"Content-Length: -1", b"Content-Length: 5",
         b"Content-Length: 99999999999999999999", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked",
         b"Expect: 100-continue", b"Expect: x", b"Upgrade: websocket", b"Upgrade: h2c", b"Connection: upgrade",
         b"Content-Encoding: gzip", b"Content-Type: application/json", b"Cookie: " + b"a" * 5000, b"Range: bytes=0-1",
         b"X-Request-Id: \"\\", b"X-Vllm-Priority: 99999999999999999999999", b"Host: a", b"Origin: null",
         b"If-None-Match: *", b"Accept: \x00", b"Forwarded: for=x"]  # fmt: skip


def make_request(rng: random.Random, key: str) -> bytes:
    """Request line, headers and perhaps a body; the connection is to be closed afterwards."""
    head = b" ".join((rng.choice(METHODS), rng.choice(TARGETS), rng.choice(VERSIONS)))
    lines = [head, b"Host: box", b"Connection: close", *rng.sample(LINES, rng.randrange(4))]
    if rng.random() < 0.6:
        lines.append(b"Authorization: Bearer " + key.encode())
    body = rng.choice([b"", b"{}", b"[]", b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b"\x00" * 50])
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def send(
    host: str, port: int, parts: Sequence[bytes], within_s: float, *, pause_s: float = 0.0, waits: bool = True
) -> bytes:
    """What comes back until the box closes, or nothing more does; b"" where it says nothing at all.

    `pause_s` is between the parts of the request; without `waits` it is over when they are sent.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        if not waits:
            return b""
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), within_s)
    except (TimeoutError, ConnectionError):
        return b""
    finally:
        writer.close()
