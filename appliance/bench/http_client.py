"""A small HTTP/1.1 client for measuring: streams are time-stamped as they arrive and looked into later.

A new connection for each request, as some servers close theirs after a stream. Nothing is retried: what goes wrong is
a failed request, and those are counted.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from appliance.bench.http_response import HttpError, ResponseParser
from appliance.errors import SettingsError

_READ_BYTES = 256 * 1024
MAX_BODY_BYTES = 16 * 1024**2
MAX_STREAM_BYTES = 512 * 1024**2
_KEPT_BODY_CHARS = 300


@dataclass(slots=True)
class RawStream:
    """What arrived on one stream. Times are `time.perf_counter` seconds; ``events`` holds each SSE data line."""

    started_s: float
    ended_s: float = 0.0
    status: int = 0
    events: list[tuple[float, bytes]] = field(default_factory=list)
    other: bytes = b""  # the beginning of what was no event: an error's body
    error: str | None = None


@dataclass(frozen=True)
class HttpServer:
    """Where to ask. ``root`` is the path in front of every request's path, without a slash at its end."""

    host: str
    port: int
    root: str = ""
    is_tls: bool = False
    is_verified: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_url(cls, url: str, headers: Mapping[str, str] | None = None, is_verified: bool = True) -> HttpServer:
        """Read http://host:port/root. Raises SettingsError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise SettingsError([f"{url!r} is not a URL such as http://127.0.0.1:8000"])
        is_tls = parts.scheme == "https"
        port = port or (443 if is_tls else 80)
        return cls(parts.hostname, port, parts.path.rstrip("/"), is_tls, is_verified, dict(headers or {}))

    @property
    def url(self) -> str:
        """For people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.root}"

    async def get(self, path: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
        """Status and body. Raises HttpError."""
        body = b""
        async with _time_limit(timeout_s), self._connect() as (reader, writer):
            writer.write(self._head("GET", path))
            parser = ResponseParser()
            while not parser.is_complete:
                body += await _read_part(reader, parser)
                if len(body) > MAX_BODY_BYTES:
                    raise HttpError(f"the answer to GET {path} is over {MAX_BODY_BYTES} bytes")
        return parser.status, body

    async def post_stream(self, path: str, body: bytes, timeout_s: float) -> RawStream:
        """Send JSON and collect the stream that answers; a failure is noted in the result, not raised."""
        stream = RawStream(time.perf_counter())
        try:
            async with _time_limit(timeout_s), self._connect() as (reader, writer):
                writer.write(self._head("POST", path, len(body)) + body)
                await _collect(reader, stream)
        except HttpError as error:
            stream.error = str(error)
        stream.ended_s = time.perf_counter()
        return stream

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            reader, writer = await asyncio.open_connection(
                self.host, self.port, ssl=self._ssl_context(), limit=_READ_BYTES
            )
        except OSError as error:
            raise HttpError(f"{self.url} cannot be reached: {_reason(error)}") from None
        try:
            yield reader, writer
        except OSError as error:
            raise HttpError(f"the connection broke: {_reason(error)}") from None
        finally:
            writer.close()

    def _ssl_context(self) -> ssl.SSLContext | None:
        if not self.is_tls:
            return None
        context = ssl.create_default_context()
        if not self.is_verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _head(self, method: str, path: str, body_bytes: int | None = None) -> bytes:
        headers = {"Host": f"{self.host}:{self.port}", "Accept": "*/*", "Connection": "close", **self.headers}
        if body_bytes is not None:
            headers |= {"Content-Type": "application/json", "Content-Length": str(body_bytes)}
        lines = [f"{method} {self.root}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@asynccontextmanager
async def _time_limit(timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise HttpError(f"not finished after {timeout_s:g} s") from None


async def _read_part(reader: asyncio.StreamReader, parser: ResponseParser) -> bytes:
    data = await reader.read(_READ_BYTES)
    if data:
        return parser.feed(data)
    parser.feed_eof()
    return b""


async def _collect(reader: asyncio.StreamReader, stream: RawStream) -> None:
    parser, rest, total = ResponseParser(), b"", 0
    while not parser.is_complete:
        part = await _read_part(reader, parser)
        now_s = time.perf_counter()
        stream.status = parser.status
        total += len(part)
        if total > MAX_STREAM_BYTES:
            raise HttpError(f"the stream is over {MAX_STREAM_BYTES} bytes")
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            _keep(line, now_s, stream)
    _keep(rest, time.perf_counter(), stream)


def _keep(line: bytes, now_s: float, stream: RawStream) -> None:
    if line.startswith(b"data:"):
        stream.events.append((now_s, line[5:].strip()))
    elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")) and len(stream.other) < _KEPT_BODY_CHARS:
        stream.other += line[:_KEPT_BODY_CHARS]


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
