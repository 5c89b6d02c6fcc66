"""Collected and streamed responses: shape, events, tools, thinking, constrained text, logprobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pydantic
import pytest

from appliance.api.served_model import ServedModel
from tests.api.conftest import MakeBox
from tests.api.harness import NAME, AsgiCall, Box, assert_error
from tests.api.responses.conftest import respond
from tests.api.responses.reading import read_response_events, without_ids
from tests.api.scripted_engine import ScriptedEngine
from tests.fakes import Answer, FakeEngine

TOOL = {
    "type": "function", "name": "get_weather", "description": "Tells the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}  # fmt: skip
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
MakeSpeaker = Callable[..., Awaitable[Box]]


async def test_answer_shape(store_box: Box) -> None:
    answer = (await respond(store_box, model="alias", metadata={"a": "b"}, user="u")).json()
    assert answer["object"] == "response"
    assert answer["id"].startswith("resp_")
    assert answer["model"] == NAME
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    [message] = answer["output"]
    assert message["content"] == [
        {"type": "output_text", "text": " red red red red", "annotations": [], "logprobs": []}
    ]
    assert (message["role"], message["status"]) == ("assistant", "incomplete")
    assert answer["usage"]["output_tokens"] == 4
    assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + 4
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 0
    assert answer["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}
    assert (answer["metadata"], answer["user"], answer["tool_choice"]) == ({"a": "b"}, "u", "auto")


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world.", "", "é 🎉 ß", f"Let me see. {CALL}", CALL + CALL, "<think>Hm.</think>Yes.",
        f"<think>Hm, tools.</think>\n{CALL}", "<think>Cut", '<tool_call>\n{"name": "get_weather", "argum',
    ],
)  # fmt: skip
async def test_stream_equals_collected(make_speaker: MakeSpeaker, text: str) -> None:
    box = await make_speaker(text)
    fields = {"tools": [TOOL], "max_output_tokens": 200}
    collected = await respond(box, **fields)
    events = read_response_events((await respond(box, **fields, stream=True)).text)
    assert without_ids(events[-1]["response"]) == without_ids(collected.json())
    assert collected.json()["status"] == "completed"


@pytest.mark.parametrize("tokens_an_output", [1, 3, 100])
async def test_items_in_order(make_speaker: MakeSpeaker, tokens_an_output: int) -> None:
    box = await make_speaker(f"<think>Hm.</think>Wait. {CALL}", answer={"tokens_an_output": tokens_an_output})
    answer = (await respond(box, tools=[TOOL], max_output_tokens=200)).json()
    reasoning, message, call = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert reasoning["summary"] == []
    assert message["content"][0]["text"].strip() == "Wait."
    assert (call["type"], call["name"], json.loads(call["arguments"])) == (
        "function_call", "get_weather", {"city": "Oslo"},
    )  # fmt: skip
    assert call["call_id"]
    assert 0 < answer["usage"]["output_tokens_details"]["reasoning_tokens"] <= answer["usage"]["output_tokens"]


async def test_an_empty_answer_is_one_empty_message(make_speaker: MakeSpeaker) -> None:
    answer = (await respond(await make_speaker(""))).json()
    assert [item["content"][0]["text"] for item in answer["output"]] == [""]
    assert answer["status"] == "completed"


async def test_reasoning_can_be_left_out(make_speaker: MakeSpeaker) -> None:
    box = await make_speaker("<think>Hm.</think>Yes.")
    answer = (await respond(box, include_reasoning=False, max_output_tokens=50)).json()
    assert [item["type"] for item in answer["output"]] == ["message"]
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


async def test_logprobs_only_where_included(store_box: Box) -> None:
    plain = (await respond(store_box, top_logprobs=2)).json()
    assert plain["output"][0]["content"][0]["logprobs"] == []
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = (await respond(store_box, **fields)).json()
    logprobs = answer["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in logprobs] == [" red"] * 4
    assert all(len(entry["top_logprobs"]) == 2 for entry in logprobs)
    events = read_response_events((await respond(store_box, **fields, stream=True)).text)
    streamed = [entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    assert streamed == logprobs
    [done] = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == logprobs


async def test_no_logprob_is_lost_where_text_lags_behind(make_speaker: MakeSpeaker) -> None:
    box = await make_speaker("🎉 done")
    fields = {"include": ["message.output_text.logprobs"], "max_output_tokens": 50}
    collected = (await respond(box, **fields)).json()
    events = read_response_events((await respond(box, **fields, stream=True)).text)
    [part] = events[-1]["response"]["output"][0]["content"]
    assert part == collected["output"][0]["content"][0]
    assert len(part["logprobs"]) == collected["usage"]["output_tokens"]


async def test_forced_call_and_parallel_calls(make_speaker: MakeSpeaker) -> None:
    said = '[{"name": "get_weather", "parameters": {"city": "Oslo"}}]'
    box = await make_speaker(said, '{"city": "Rome"}')
    required = (await respond(box, tools=[TOOL], tool_choice="required", max_output_tokens=99)).json()
    assert [item["type"] for item in required["output"]] == ["function_call"]
    choice = {"type": "function", "name": "get_weather"}
    named = (await respond(box, tools=[TOOL], tool_choice=choice, max_output_tokens=99)).json()
    assert json.loads(named["output"][0]["arguments"]) == {"city": "Rome"}
    assert named["tool_choice"] == choice
    assert (required["status"], named["status"]) == ("completed", "completed")


async def test_allowed_tools_leave_out_the_others(make_speaker: MakeSpeaker, text_side: ServedModel) -> None:
    box = await make_speaker("ok")
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]}
    other = TOOL | {"name": "get_secret"}
    assert (await respond(box, tools=[TOOL, other], tool_choice=allowed)).status_code == 200
    prompt = text_side.tokenizer.decode(box.engine.requests[-1].prompt_token_ids)  # type: ignore[attr-defined]
    assert "get_weather" in prompt
    assert "get_secret" not in prompt
    unknown = allowed | {"tools": [{"type": "function", "name": "nope"}]}
    assert_error(await respond(box, tools=[TOOL], tool_choice=unknown), 400, "tool_choice.tools")


async def test_text_format_becomes_a_grammar(make_speaker: MakeSpeaker) -> None:
    box = await make_speaker('{"city": "Oslo"}')
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
              "additionalProperties": False}  # fmt: skip
    formats: list[dict[str, Any]] = [
        {"type": "json_object"}, {"type": "json_schema", "name": "place", "schema": schema, "strict": True},
    ]  # fmt: skip
    for text_format in formats:
        answer = (await respond(box, text={"format": text_format}, max_output_tokens=50)).json()
        assert answer["text"]["format"] == text_format
        assert box.engine.requests[-1].sampling.grammar is not None  # type: ignore[attr-defined]


async def test_openai_sdk_create_stream_and_parse(make_speaker: MakeSpeaker) -> None:
    import openai

    class Place(pydantic.BaseModel):
        city: str

    box = await make_speaker('{"city": "Oslo"}')
    client = openai.AsyncOpenAI(base_url="http://box/v1", api_key="x", http_client=box.client, max_retries=0)
    created = await client.responses.create(model=NAME, input="Where?")
    assert created.output_text == '{"city": "Oslo"}'
    assert created.status == "completed"
    parsed = await client.responses.parse(model=NAME, input="Where?", text_format=Place)
    assert parsed.output_parsed == Place(city="Oslo")
    async with client.responses.stream(model=NAME, input="Where?", text_format=Place) as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(texts) == final.output_text == created.output_text
    assert final.output_parsed == Place(city="Oslo")
    with pytest.raises(openai.BadRequestError) as bad:
        await client.responses.create(model=NAME, input="x", max_output_tokens=0)
    assert bad.value.param == "max_output_tokens"


async def test_openai_sdk_tool_round_trip(make_speaker: MakeSpeaker, text_side: ServedModel) -> None:
    import openai

    box = await make_speaker(f"<think>Hm.</think>{CALL}", "It rains.")
    client = openai.AsyncOpenAI(base_url="http://box/v1", api_key="x", http_client=box.client, max_retries=0)
    items: list[Any] = [{"role": "user", "content": "Weather in Oslo?"}]
    first = await client.responses.create(model=NAME, input=items, tools=[TOOL])  # type: ignore[list-item]
    items += first.output
    [call] = [item for item in first.output if item.type == "function_call"]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain, 4 degrees"})
    second = await client.responses.create(model=NAME, input=items, tools=[TOOL])  # type: ignore[list-item]
    assert second.output_text == "It rains."
    prompt = text_side.tokenizer.decode(box.engine.requests[-1].prompt_token_ids, False)  # type: ignore[attr-defined]
    assert prompt.index("Weather in Oslo?") < prompt.index('"city": "Oslo"') < prompt.index("rain, 4 degrees")


async def test_an_engine_that_fails_midway_fails_the_response(make_box: MakeBox) -> None:
    box = await make_box(engine=ScriptedEngine(fails_after=2))
    response = await respond(box, stream=True)
    assert response.status_code == 200
    events = read_response_events(response.text)
    failed = events[-1]["response"]
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "server_error"
    assert "tensor" not in failed["error"]["message"]
    assert failed["output"][0]["content"][0]["text"] == " red red"
    assert_error(await respond(box), 500)
    failing = await make_box(engine=ScriptedEngine(fails_after=0))
    assert_error(await respond(failing, stream=True), 500)


@pytest.mark.parametrize("tokens_an_output", [1, 9])
async def test_an_aborted_generation_is_no_answer(make_box: MakeBox, tokens_an_output: int) -> None:
    answer = Answer(token_ids=[2382, 2382], finish_reason="abort", tokens_an_output=tokens_an_output)
    box = await make_box(engine=FakeEngine(answer))
    assert_error(await respond(box), 503)
    failed = read_response_events((await respond(box, stream=True)).text)[-1]["response"]
    assert failed["status"] == "failed"
    assert failed["output"][0]["content"][0]["text"] == " red red"
    assert failed["output"][0]["status"] == "incomplete"


async def test_silence_gets_comments_and_departure_aborts(make_box: MakeBox) -> None:
    gate = asyncio.Semaphore(0)
    box = await make_box(engine=ScriptedEngine(gate=gate), sse_keep_alive_interval=0.02)
    body = {"model": NAME, "input": "hi", "max_output_tokens": 100, "stream": True}
    async with AsgiCall(box.app, "/v1/responses", body) as call:
        await call.next()
        assert await call.next_body() == b": keep-alive\n\n"
        gate.release()
        while b"response.created" not in (told := await call.next_body()):
            pass
        assert told.count(b"response.output_text.delta") == 2  # its name and its type
    assert box.engine.aborted


async def test_mid_stream_error_before_anything_was_said(make_box: MakeBox) -> None:
    gate = asyncio.Semaphore(0)
    box = await make_box(engine=ScriptedEngine(gate=gate, fails_after=0), sse_keep_alive_interval=0.02)
    async with AsgiCall(box.app, "/v1/responses", {"model": NAME, "input": "hi", "stream": True}) as call:
        await call.next()
        gate.release()
        text = b""
        while b"response.failed" not in text:
            text += await call.next_body()
    events = read_response_events(text.decode())
    assert events[-1]["response"]["status"] == "failed"
