"""``--middleware``: classes and coroutine functions run around every route; anything else stops the start."""

from __future__ import annotations

import asyncio

import pytest

from appliance.api.middleware_plugins import load_plugins
from appliance.errors import ApplianceError
from appliance.preflight import find_problems
from appliance.settings import Settings
from tests.api.conftest import MakeBox
from tests.api.harness import AsgiCall, Box, assert_error, read_events
from tests.api.scripted_engine import ScriptedEngine

BOTH = ("tests.api.plugins.Stamp", "tests.api.plugins.stamp")


@pytest.fixture
async def plugged(make_box: MakeBox) -> Box:
    box: Box = await make_box(middleware=BOTH)
    return box


@pytest.mark.parametrize("stream", [False, True])
async def test_plugins_see_every_answer(plugged: Box, stream: bool) -> None:
    response = await plugged.chat(stream=stream)
    assert response.status_code == 200
    assert (response.headers["x-stamp"], response.headers["x-stamp-function"]) == ("class", "function")
    if stream:
        assert len(read_events(response.text)) > 1


async def test_a_plugin_sees_every_part_of_a_stream(make_box: MakeBox) -> None:
    box = await make_box(middleware=("tests.api.plugins.Shout",))
    text = (await box.chat(stream=True)).text
    assert (text.count(" RED"), text.count(" red")) == (4, 0)


async def test_a_plugins_fault_is_told_in_the_envelope(plugged: Box) -> None:
    response = await plugged.client.get("/v1/models", headers={"x-fail": "1"})
    assert "plugin" not in assert_error(response, 500)
    assert response.headers["x-request-id"]


async def test_errors_pass_through_plugins(plugged: Box) -> None:
    assert_error(await plugged.chat(n=0), 400, "n")
    assert_error(await plugged.client.get("/nothing"), 404)


async def test_plugins_run_before_keys_are_asked_for(make_box: MakeBox) -> None:
    box = await make_box(middleware=BOTH, api_key=("k",))
    assert (await box.chat()).headers["x-stamp"] == "class"


async def test_a_client_that_leaves_is_seen_through_plugins(make_box: MakeBox) -> None:
    engine = ScriptedEngine(gate=asyncio.Semaphore(1))
    box = await make_box(engine, middleware=BOTH)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50, "stream": True}
    async with AsgiCall(box.app, "/v1/chat/completions", body) as call:
        assert (await call.next())["status"] == 200
        await call.next_body()
        call.leave()
        await asyncio.wait_for(call.task, 5)
    assert len(engine.aborted) == 1
    assert not engine.running


@pytest.mark.parametrize(
    "path", ["tests.api.plugins.NOT_MIDDLEWARE", "tests.api.plugins.missing", "no.such.module", "plain", ".x", ""]
)
def test_anything_else_stops_the_start(path: str) -> None:
    with pytest.raises(ApplianceError, match="--middleware"):
        load_plugins([path])
    assert any("--middleware" in problem for problem in find_problems(Settings(middleware=(path,))))


def test_a_colon_is_as_good_as_a_dot() -> None:
    assert len(load_plugins(["tests.api.plugins:Stamp"])) == 1
