"""Constrained answers of the real model through the front door, and other streams while grammars are compiled."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.box.running_box import RunningBox
from tests.box.test_serving import STORY

MODEL = "SmolLM2-135M-Instruct"
GO: list[dict[str, str]] = [{"role": "user", "content": "go"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def client(box: RunningBox) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{box.url}/v1", api_key="none", timeout=120, max_retries=0)


def post(box: RunningBox, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": GO, "temperature": 0} | fields
    return httpx.post(f"{box.url}/v1/chat/completions", json=body, timeout=120)


def test_b40_a_hostile_bias_does_not_drown_the_answer(box: RunningBox) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    spec = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    choice = post(box, max_tokens=200, logit_bias={"198": 100, "216": 100}, response_format=spec).json()["choices"][0]
    content = choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    assert set(json.loads(content)) == {"a"}
    assert content.endswith("}")
    assert max(len(run) for run in _blank_runs(content)) <= 16


def _blank_runs(text: str) -> list[str]:
    return "".join(" " if character.isspace() else "." for character in text).split(".")


@pytest.mark.parametrize("stream", [False, True])
def test_b38_a_wrong_schema_is_refused_before_a_byte(box: RunningBox, stream: bool) -> None:
    spec = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}}}
    response = post(box, response_format=spec, stream=stream)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format"
    assert "uniqueItems" in response.json()["error"]["message"]


def test_the_sdk_parses_a_model(client: openai.OpenAI) -> None:
    class City(BaseModel):
        name: str
        is_capital: bool

    answer = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "Name a city"}], response_format=City, max_tokens=400, seed=4
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_b37_forced_calls(client: openai.OpenAI) -> None:
    hello: Any = [{"role": "user", "content": "Hello"}]
    required = client.chat.completions.create(
        model=MODEL, messages=hello, tools=[WEATHER], tool_choice="required", max_tokens=64, temperature=0
    ).choices[0]
    assert required.finish_reason == "tool_calls"
    assert required.message.content is None
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    forced = client.chat.completions.create(
        model=MODEL, messages=hello, tools=[WEATHER], tool_choice=named, max_tokens=64, temperature=0
    ).choices[0]
    assert forced.finish_reason == "stop"
    for message in (required.message, forced.message):
        assert message.tool_calls
        for call in message.tool_calls:
            assert call.type == "function"
            assert json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")


async def test_a_stream_flows_while_heavy_grammars_are_compiled(box: RunningBox) -> None:
    gaps: list[float] = []
    async with httpx.AsyncClient(base_url=box.url, timeout=120) as client:
        others = asyncio.create_task(_ask_for_heavy_schemas(client))
        body = STORY | {"max_tokens": 300, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            last = None
            async for chunk in response.aiter_bytes():
                now = time.monotonic()
                if last is not None:
                    gaps.append(now - last)
                last = now if b"data" in chunk else last
        assert [answer.text for answer in await others if answer.status_code != 200] == []
    print(f"largest gap {max(gaps):.3f} s over {len(gaps)} pieces")
    assert max(gaps) < 3, "on a quiet machine it is under 1 s"


async def _ask_for_heavy_schemas(client: httpx.AsyncClient) -> list[httpx.Response]:
    async def ask(number: int) -> httpx.Response:
        properties = {f"property_{number}_{index}": {"type": "string"} for index in range(2000)}
        schema = {"type": "object", "properties": properties}
        spec = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body = {"model": MODEL, "messages": GO, "max_tokens": 2, "response_format": spec}
        return await client.post("/v1/chat/completions", json=body)

    await asyncio.sleep(0.3)
    return await asyncio.gather(*(ask(number) for number in range(8)))
