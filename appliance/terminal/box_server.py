"""A box as the commands for people ask it: JSON with the server's own words where it refuses, and live streams.

Reaching it (address, key, TLS) is `bench.http_client`'s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from appliance.bench.http_client import MAX_BODY_BYTES, HttpServer
from appliance.bench.http_response import HttpError, ResponseParser
from appliance.settings import Settings, load_settings_and_problems
from appliance.supervisor.readiness import own_url

_READ_BYTES = 64 * 1024
_SILENCE_S = 300.0  # a box gives a sign of life every few seconds


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Where the box is, and the key."""
    group = parser.add_argument_group("box")
    group.add_argument("--url", help="of the box; default: this machine, with the port of BREADBOX_PORT or 8000")
    group.add_argument("--api-key", metavar="KEY", help="default: the first of BREADBOX_API_KEY")
    group.add_argument("--insecure", action="store_true", help="accept any TLS certificate")


def find_server(args: argparse.Namespace) -> BoxServer:
    """The box that the flags or the environment name. Raises SettingsError."""
    settings = load_settings_and_problems({})[0].settings
    return make_server(args.url or own_url(settings), args.api_key, settings, is_verified=not args.insecure)


def make_server(url: str, api_key: str | None, settings: Settings, *, is_verified: bool = True) -> BoxServer:
    """A box at this URL; without a key the environment's own is taken. Raises SettingsError."""
    key = api_key or next(iter(settings.api_key), None)
    # People paste the URL that OpenAI's clients want.
    url = url.rstrip("/").removesuffix("/v1")
    return BoxServer.from_url(url, {"Authorization": f"Bearer {key}"} if key else {}, is_verified)


class BoxServer(HttpServer):
    """Asks for JSON and for streams. Raises HttpError, in the server's words where there are any."""

    @classmethod
    def from_url(cls, url: str, headers: Any = None, is_verified: bool = True) -> BoxServer:
        """As `HttpServer`'s."""
        made = HttpServer.from_url(url, headers, is_verified)
        return cls(made.host, made.port, made.root, made.is_tls, made.is_verified, made.headers)

    async def get_json(self, path: str) -> Any:
        """The body of an answer that is no error."""
        status, body = await self.get(path)
        if status != 200:
            raise HttpError(read_error(status, body))
        return _parse(body)

    async def first_model(self) -> str:
        """The name of the first model that it serves."""
        models = await self.get_json("/v1/models")
        with contextlib.suppress(LookupError, TypeError):
            return str(models["data"][0]["id"])
        raise HttpError(f"{self.url} serves no model")

    async def stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Each event of the stream that answers, as it comes; an error in it is raised."""
        data = json.dumps(body).encode()
        async with self._connect() as (reader, writer):
            writer.write(self._head("POST", path, len(data)) + data)
            parser, rest = ResponseParser(), b""
            while not parser.is_complete:
                rest += await _read(reader, parser)
                if parser.status == 200:
                    *lines, rest = rest.split(b"\n")
                    for event in _read_events(lines):
                        yield event
                if len(rest) > MAX_BODY_BYTES:
                    raise HttpError(f"an event of the stream is over {MAX_BODY_BYTES} bytes")
        if parser.status != 200:
            raise HttpError(read_error(parser.status, rest))


def read_error(status: int, body: bytes) -> str:
    """What an answer that is an error says."""
    message = None
    with contextlib.suppress(HttpError):
        message = _message_of(_parse(body))
    return f"{message} (HTTP {status})" if message else f"the server answers HTTP {status}"


async def _read(reader: asyncio.StreamReader, parser: ResponseParser) -> bytes:
    try:
        async with asyncio.timeout(_SILENCE_S):
            data = await reader.read(_READ_BYTES)
    except TimeoutError:
        raise HttpError(f"nothing came for {_SILENCE_S:g} s") from None
    if data:
        return parser.feed(data)
    parser.feed_eof()
    return b""


def _read_events(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    """Lazily: what came before an error is worth having."""
    for line in lines:
        data = line[5:].strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            continue
        event = _parse(data)
        if not isinstance(event, dict):
            raise HttpError("the stream holds something that is no event")
        if "error" in event:
            raise HttpError(_message_of(event) or "the answer ended with an error")
        yield event


def _message_of(envelope: Any) -> str | None:
    with contextlib.suppress(LookupError, TypeError):
        return str(envelope["error"]["message"])
    return None


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise HttpError("the server's answer is not JSON") from None
