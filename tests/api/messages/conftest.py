"""A box that says what a test wants it to say, the request that asks for it, and Anthropic's client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import httpx2
import pytest

from appliance.api.served_model import ServedModel
from tests.api.conftest import MakeBox
from tests.api.harness import NAME, Box
from tests.api.speech import engine_saying

PARSERS = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "think"}
BODY = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}
MakeSpeaker = Callable[..., Awaitable[Box]]


@pytest.fixture
def make_speaker(make_box: MakeBox, text_side: ServedModel) -> MakeSpeaker:
    """A box with all parsers whose engine says these texts, a request each."""

    async def make(*texts: str, answer: dict[str, Any] | None = None, **settings: Any) -> Box:
        made: Box = await make_box(engine=engine_saying(text_side, *texts, **(answer or {})), **(PARSERS | settings))
        return made

    return make


async def ask(box: Box, **fields: Any) -> httpx.Response:
    """POST a message request; all that is required has a default."""
    return await box.client.post("/v1/messages", json=BODY | fields)


@asynccontextmanager
async def open_client(box: Box, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """The unmodified client, talking to the box's application."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(box.app)) as transport:
        options = {"api_key": "key", "max_retries": 0, **options}
        yield anthropic.AsyncAnthropic(base_url="http://box", http_client=transport, **options)


def assert_refused(response: httpx.Response, status: int, kind: str) -> str:
    """Anthropic's envelope; returns the message."""
    assert response.status_code == status, response.text
    envelope = response.json()
    assert set(envelope) == {"type", "error", "request_id"}
    assert envelope["type"] == "error"
    assert set(envelope["error"]) == {"type", "message"}
    assert envelope["error"]["type"] == kind
    assert envelope["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    return str(envelope["error"]["message"])
