"""An OpenAI-like server on loopback that answers by a script, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Reply = Callable[["FakeServer", str, dict[str, Any]], list[bytes]]


def event(data: Any) -> bytes:
    """One SSE event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


def completion(tokens: int = 4, prompt_tokens: int = 10, cached: int = 0, is_chat: bool = False) -> list[bytes]:
    """The events of a whole stream: `tokens` chunks of text, finish, usage, [DONE]."""

    def chunk(**choice: Any) -> bytes:
        return event({"choices": [{"index": 0, "finish_reason": None, **choice}]})

    parts = [chunk(delta={"role": "assistant", "content": ""})] if is_chat else []
    for index in range(tokens):
        text = f"w{index} "
        parts.append(chunk(delta={"content": text}) if is_chat else chunk(text=text))
    parts.append(chunk(delta={}, finish_reason="length") if is_chat else chunk(text="", finish_reason="length"))
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, **details}
    return [*parts, event({"choices": [], "usage": usage}), event("[DONE]")]


def head(status: int = 200, kind: str = "text/event-stream") -> bytes:
    """A response's head with a chunked body."""
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()


def chunked(parts: list[bytes]) -> bytes:
    """A whole chunked body."""
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def answer(status: int, body: Any) -> bytes:
    """A response with a JSON body of a given length."""
    text = json.dumps(body).encode() if not isinstance(body, bytes) else body
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text


def reply_well(server: FakeServer, path: str, body: dict[str, Any]) -> list[bytes]:
    """As many tokens as asked for."""
    return [head(), chunked(completion(body["max_tokens"], is_chat="messages" in body))]


@dataclass
class FakeServer:
    """``reply`` makes the pieces of a POST's response; what was asked is kept."""

    reply: Reply = reply_well
    port: int = 0
    metrics: list[str] = field(default_factory=list)  # answers of /metrics, in turn
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                await self._answer(reader, writer)
            finally:
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = request.split()
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        if method == "GET":
            writer.write(self._get(path))
        else:
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            await self._post(path, headers, body, writer)
        await writer.drain()

    def _get(self, path: str) -> bytes:
        if path.endswith("/v1/models"):
            return answer(200, {"data": [{"id": "fake-model", "root": "fake-model"}]})
        if path == "/metrics" and self.metrics:
            return answer(200, self.metrics.pop(0).encode())
        return answer(404, {"error": {"message": "no such path"}})

    async def _post(self, path: str, headers: dict[str, str], body: Any, writer: asyncio.StreamWriter) -> None:
        self.paths.append(path)
        self.headers.append(headers)
        self.bodies.append(body)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        *pieces, last = self.reply(self, path, body)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.001)
        self.at_once -= 1
        writer.write(last)


@contextlib.contextmanager
def running(server: FakeServer | None = None) -> Iterator[FakeServer]:
    """Serve on a free port."""
    server = server or FakeServer()
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(server.handle, "127.0.0.1", 0))
    server.port = listening.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()
        loop.run_until_complete(_finish())
        loop.close()


async def _finish() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # closed transports let go of their sockets
