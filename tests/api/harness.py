"""What API tests talk through: a client on the app, and readers of streams and error envelopes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

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
