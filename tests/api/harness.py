"""What API tests talk through: a client on the app, and readers of streams and error envelopes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

from appliance.api.body_writer import EXTENSION
from appliance.api.served_model import ServedModel
from tests.api.scripted_engine import ScriptedEngine

NAME = "smol"


@dataclass
class Box:
    """A running API: the client, and the engine behind it."""

    app: FastAPI
    client: httpx.AsyncClient
    engine: ScriptedEngine
    model: ServedModel

    async def chat(self, **fields: Any) -> httpx.Response:
        """POST a chat request; messages and model have defaults."""
        body = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}
        return await self.client.post("/v1/chat/completions", json=body | fields)

    async def complete(self, **fields: Any) -> httpx.Response:
        """POST a completion request."""
        body = {"model": NAME, "prompt": "Colour:", "max_tokens": 4, "temperature": 0}
        return await self.client.post("/v1/completions", json=body | fields)


def read_events(text: str) -> list[Any]:
    """The JSON of every event of a finished stream, which must end with [DONE]."""
    events = [event for event in text.split("\n\n") if event]
    assert text.endswith("\n\n")
    assert events[-1] == "data: [DONE]"
    events = [event for event in events[:-1] if not event.startswith(":")]
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def assert_error(response: httpx.Response, status: int, param: str | None = None, code: str | None = None) -> str:
    """The one envelope, and nothing of the inside; returns the message."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    if code is not None:
        assert error["code"] == code
    assert "Traceback" not in error["message"]
    assert "/home/" not in error["message"]
    return str(error["message"])


class AsgiCall:
    """One request driven by hand: sees each message as it is sent, and can walk away.

    The app may write to it without a task while ``reads`` is true; ``num_written`` counts how often it did.
    """

    def __init__(self, app: FastAPI, path: str, body: dict[str, Any]) -> None:
        self._app = app
        self._body = json.dumps(body).encode()
        self._gone = asyncio.Event()
        self._is_read = False
        self.reads = True
        self.num_written = 0
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        headers = [(b"content-type", b"application/json"), (b"host", b"box")]
        self._scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers,
            "client": ("127.0.0.1", 1), "server": ("box", 80), "extensions": {EXTENSION: {"writer": self}},
        }  # fmt: skip

    async def __aenter__(self) -> AsgiCall:
        self.task = asyncio.create_task(self._app(self._scope, self._receive, self.messages.put))
        return self

    async def __aexit__(self, *error: object) -> None:
        self.leave()
        await asyncio.wait_for(self.task, 5)

    async def _receive(self) -> dict[str, Any]:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def is_ready(self) -> bool:
        """The app may write."""
        return self.reads and not self._gone.is_set() and not self.messages.full()

    def write(self, body: bytes) -> None:
        """The app writes."""
        self.num_written += 1
        self.messages.put_nowait({"type": "http.response.body", "body": body, "more_body": True})

    def leave(self) -> None:
        """The client closes its connection."""
        self._gone.set()

    async def next(self) -> dict[str, Any]:
        """The next message of the answer."""
        return await asyncio.wait_for(self.messages.get(), 5)

    async def next_body(self) -> bytes:
        """The next message's body."""
        return bytes((await self.next())["body"])
