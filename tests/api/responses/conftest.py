"""A box that keeps responses, and one that says what a test wants it to say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.api.served_model import ServedModel
from tests.api.conftest import MakeBox
from tests.api.harness import NAME, Box
from tests.api.speech import engine_saying

PARSERS = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "think"}
Respond = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture
def make_speaker(make_box: MakeBox, text_side: ServedModel, tmp_path: Path) -> Callable[..., Awaitable[Box]]:
    """A box with all parsers whose engine says these texts, a request each."""

    async def make(*texts: str, answer: dict[str, Any] | None = None, **settings: Any) -> Box:
        engine = engine_saying(text_side, *texts, **(answer or {}))
        made: Box = await make_box(engine=engine, **({"run_dir": tmp_path} | PARSERS | settings))
        return made

    return make


@pytest.fixture
async def store_box(make_box: MakeBox, tmp_path: Path) -> Box:
    """A box with default settings and a run directory."""
    made: Box = await make_box(run_dir=tmp_path)
    return made


async def respond(box: Box, **fields: Any) -> httpx.Response:
    """POST a response request; model, input and a limit have defaults."""
    body = {"model": NAME, "input": "hi", "max_output_tokens": 4, "temperature": 0}
    return await box.client.post("/v1/responses", json=body | fields)
