"""An API over a scripted engine and the default model's real tokenizer and template."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.api.app import create_app
from appliance.api.served_model import SamplingDefaults, ServedModel
from appliance.baked_model import BakedModel
from appliance.settings import Settings
from appliance.text.chat_template import ChatTemplate
from appliance.text.tokenizer import Tokenizer
from tests.api.harness import NAME, Box
from tests.api.scripted_engine import ScriptedEngine
from tests.unit.grammar.builders import Engine


@pytest.fixture(scope="session")
def text_side(smollm2: Path) -> ServedModel:
    """The parts of a served model that are slow to load."""
    baked = BakedModel(smollm2)
    tokenizer = Tokenizer.load(baked)
    assert baked.chat_template is not None
    template = ChatTemplate(baked.chat_template, baked.tokenizer_config, tokenizer)
    return ServedModel([NAME], baked, ScriptedEngine(), tokenizer, template, max_model_len=8192)


@pytest.fixture(scope="session")
def mask_engine(smollm2: Path) -> Engine:
    """A core that draws any token that a grammar allows; for `CoreEngine`."""
    return Engine(smollm2)


MakeBox = Callable[..., Any]


@asynccontextmanager
async def open_boxes(text_side: ServedModel) -> AsyncIterator[MakeBox]:
    """A function that starts APIs with given settings; all are closed at the end."""
    async with AsyncExitStack() as stack:

        async def make(engine: ScriptedEngine | None = None, max_model_len: int = 8192, **settings: Any) -> Box:
            engine = engine or ScriptedEngine()
            names = settings.pop("names", [NAME, "alias"])
            changes = {"names": names, "engine": engine, "max_model_len": max_model_len, "defaults": SamplingDefaults()}
            model = dataclasses.replace(text_side, **changes)
            app = create_app(Settings(**settings), [model])
            await stack.enter_async_context(app.router.lifespan_context(app))
            transport = httpx.ASGITransport(app)
            client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://box"))
            return Box(app, client, engine, model)

        yield make


@pytest.fixture
async def make_box(text_side: ServedModel) -> AsyncIterator[MakeBox]:
    """Start an API with the given settings; closed at the end of the test."""
    async with open_boxes(text_side) as make:
        yield make


@pytest.fixture
async def box(make_box: MakeBox) -> Box:
    """An API with default settings."""
    made: Box = await make_box()
    return made


@pytest.fixture
def running(text_side: ServedModel) -> Iterator[tuple[Box, asyncio.AbstractEventLoop]]:
    """An API for tests that are not coroutines, and the loop that it runs in."""
    with asyncio.Runner() as runner:
        boxes = open_boxes(text_side)
        make = runner.run(boxes.__aenter__())
        yield runner.run(make()), runner.get_loop()
        runner.run(boxes.__aexit__(None, None, None))
