"""The body writer of the API workers' server, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn import Config, Server

from appliance.api.body_writer import BodyWriter, get_body_writer
from appliance.supervisor.http_protocol import HttpProtocol
from tests.box.proxy import short_dir

REQUEST = b"GET / HTTP/1.1\r\nhost: box\r\n\r\n"
HEAD: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
END = {"type": "http.response.body", "body": b"", "more_body": False}
Answer = Callable[[BodyWriter, Send], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Path]:
    """A server of one app; its socket."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        writer = get_body_writer(scope)
        assert writer is not None
        await answer(writer, send)

    with short_dir() as folder:
        path = folder / "api.sock"
        config = Config(app, uds=str(path), http=HttpProtocol, ws="none", lifespan="off", log_config=None)
        server = Server(config)
        with contextlib.ExitStack() as stack:
            config.load()
            server.lifespan = config.lifespan_class(config)
            await server.startup()
            stack.callback(server.servers[0].close)
            yield path
            server.should_exit = True
            await server.shutdown()


async def test_what_is_written_is_a_chunk_in_turn_with_what_is_sent() -> None:
    ready: list[bool] = []

    async def answer(writer: BodyWriter, send: Send) -> None:
        ready.append(writer.is_ready())
        await send(HEAD)
        ready.append(writer.is_ready())
        writer.write(b"one")
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        writer.write(b"x" * 20)
        await send(END)
        ready.append(writer.is_ready())

    async with serving(answer) as path:
        reader, stream = await asyncio.open_unix_connection(path)
        stream.write(REQUEST + REQUEST)  # the second one's writer is another
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"transfer-encoding: chunked" in head
            body = await reader.readuntil(b"0\r\n\r\n")
            assert body == b"3\r\none\r\n3\r\ntwo\r\n14\r\n" + b"x" * 20 + b"\r\n0\r\n\r\n"
        stream.close()
    assert ready == [False, True, False] * 2


async def test_a_body_of_a_known_length_is_not_chunked() -> None:
    ready: list[bool] = []

    async def answer(writer: BodyWriter, send: Send) -> None:
        await send(HEAD | {"headers": [(b"content-length", b"2")]})
        ready.append(writer.is_ready())
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})

    async with serving(answer) as path:
        reader, stream = await asyncio.open_unix_connection(path)
        stream.write(REQUEST)
        assert (await reader.readuntil(b"ok")).endswith(b"\r\n\r\nok")
        stream.close()
    assert ready == [False]


@pytest.mark.parametrize("leaves", [True, False])
async def test_who_does_not_read_is_not_written_to(leaves: bool) -> None:
    is_full, is_over = asyncio.Event(), asyncio.Event()

    async def answer(writer: BodyWriter, send: Send) -> None:
        await send(HEAD)
        while writer.is_ready():
            writer.write(b"x" * 65536)
        is_full.set()
        await send({"type": "http.response.body", "body": b"last", "more_body": True})  # waits for the reader
        assert writer.is_ready() is not leaves
        await send(END)
        is_over.set()

    async with serving(answer) as path:
        reader, stream = await asyncio.open_unix_connection(path, limit=1 << 24)
        transport = cast(asyncio.Transport, stream.transport)
        transport.pause_reading()
        stream.write(REQUEST)
        await asyncio.wait_for(is_full.wait(), 5)
        if leaves:
            transport.abort()
        else:
            transport.resume_reading()
            assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"\r\n4\r\nlast\r\n0\r\n\r\n")
        await asyncio.wait_for(is_over.wait(), 5)
        stream.close()
