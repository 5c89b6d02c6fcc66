"""Collected and streamed messages: shape, blocks, stop reasons, usage, errors, and the unmodified client."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pydantic
import pytest

from appliance.api.served_model import ServedModel
from tests.api.conftest import MakeBox
from tests.api.harness import NAME, AsgiCall, Box
from tests.api.messages.conftest import BODY, MakeSpeaker, ask, assert_refused, open_client
from tests.api.messages.reading import fold_message, without_ids
from tests.api.scripted_engine import EOS, ScriptedEngine
from tests.fakes import Answer, FakeEngine

TOOL: dict[str, Any] = {
    "name": "get_weather", "description": "Tells the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}  # fmt: skip
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
MESSAGES: list[Any] = [{"role": "user", "content": "Weather in Oslo?"}]


async def test_answer_shape(box: Box) -> None:
    response = await ask(box, model="alias")
    message = response.json()
    assert message.pop("id").startswith("msg_")
    num_input = message["usage"].pop("input_tokens")
    assert num_input > 10
    assert message == {
        "type": "message", "role": "assistant", "model": NAME,
        "content": [{"type": "text", "text": " red red red red"}],
        "stop_reason": "max_tokens", "stop_sequence": None,
        "usage": {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 4},
    }  # fmt: skip
    assert response.headers["request-id"] == response.headers["x-request-id"]


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world.", "", "é 🎉 ß", f"Let me see. {CALL}", CALL + CALL, "<think>Hm.</think>Yes.",
        f"<think>Hm, tools.</think>\n{CALL}", "<think>Cut",
    ],
)  # fmt: skip
async def test_stream_equals_collected(make_speaker: MakeSpeaker, text: str) -> None:
    box = await make_speaker(text)
    fields = {"tools": [TOOL], "max_tokens": 200}
    collected = (await ask(box, **fields)).json()
    assert without_ids(fold_message((await ask(box, **fields, stream=True)).text)) == without_ids(collected)


async def test_blocks_in_order(make_speaker: MakeSpeaker) -> None:
    box = await make_speaker(f"<think>Hm.</think>Wait. {CALL}")
    message = (await ask(box, tools=[TOOL], max_tokens=200)).json()
    thinking, text, call = message["content"]
    assert thinking["thinking"] == "Hm."
    assert thinking["signature"]
    assert text["text"].strip() == "Wait."
    assert (call["name"], call["input"]) == ("get_weather", {"city": "Oslo"})
    assert call["id"]
    assert message["stop_reason"] == "tool_use"


async def test_thinking_can_be_switched_off(make_speaker: MakeSpeaker) -> None:
    box = await make_speaker("<think>Hm.</think>Yes.")
    message = (await ask(box, thinking={"type": "disabled"}, max_tokens=50)).json()
    assert message["content"] == [{"type": "text", "text": "Yes."}]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_stop_reasons(make_speaker: MakeSpeaker, is_streamed: bool) -> None:
    async def why(box: Box, **fields: Any) -> tuple[str, str | None]:
        response = await ask(box, **({"max_tokens": 200} | fields), stream=is_streamed)
        message = fold_message(response.text) if is_streamed else response.json()
        return message["stop_reason"], message["stop_sequence"]

    assert await why(await make_speaker("One. Two.")) == ("end_turn", None)
    assert await why(await make_speaker("One. Two."), stop_sequences=["Two"]) == ("stop_sequence", "Two")
    assert await why(await make_speaker("One. Two."), max_tokens=2) == ("max_tokens", None)
    assert await why(await make_speaker(CALL), tools=[TOOL]) == ("tool_use", None)
    stop_id = {"stop_reason": 7}
    assert await why(await make_speaker("One.", answer=stop_id)) == ("end_turn", None)
    named = {"type": "tool", "name": "get_weather"}
    assert await why(await make_speaker('{"city": "Oslo"}'), tools=[TOOL], tool_choice=named) == ("tool_use", None)
    cut = await make_speaker('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"')
    assert await why(cut, tools=[TOOL], max_tokens=15) == ("max_tokens", None)


async def test_cached_tokens_are_counted_apart(make_speaker: MakeSpeaker) -> None:
    box = await make_speaker("ok", answer={"num_cached_tokens": 16})
    usage = (await ask(box)).json()["usage"]
    assert usage["cache_read_input_tokens"] == 16
    num_prompt = len(box.engine.requests[-1].prompt_token_ids)  # type: ignore[attr-defined]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"] == num_prompt
    assert fold_message((await ask(box, stream=True)).text)["usage"] == usage


async def test_any_must_call_and_one_at_a_time(make_speaker: MakeSpeaker) -> None:
    box = await make_speaker('[{"name": "get_weather", "parameters": {"city": "Oslo"}}]')
    choice = {"type": "any", "disable_parallel_tool_use": True}
    message = (await ask(box, tools=[TOOL], tool_choice=choice, max_tokens=99)).json()
    assert [block["type"] for block in message["content"]] == ["tool_use"]
    assert message["stop_reason"] == "tool_use"
    assert box.engine.requests[-1].sampling.grammar is not None  # type: ignore[attr-defined]


async def test_output_format_becomes_a_grammar(make_speaker: MakeSpeaker) -> None:
    box = await make_speaker('{"city": "Oslo"}')
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    output = {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    assert (await ask(box, output_config=output, max_tokens=50)).status_code == 200
    assert box.engine.requests[-1].sampling.grammar is not None  # type: ignore[attr-defined]


async def test_client_creates_and_streams(make_speaker: MakeSpeaker) -> None:
    box = await make_speaker(f"<think>Hm.</think>Wait. {CALL}")
    async with open_client(box) as client:
        fields: dict[str, Any] = {"model": NAME, "max_tokens": 200, "messages": MESSAGES, "tools": [TOOL]}
        created = await client.messages.create(**fields)
        assert created._request_id
        async with client.messages.stream(**fields) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        for message in (created, final):
            thinking, said, call = message.content
            assert (thinking.type, said.type, call.type) == ("thinking", "text", "tool_use")
            assert (thinking.thinking, said.text.strip(), call.input) == ("Hm.", "Wait.", {"city": "Oslo"})
            assert message.stop_reason == "tool_use"
        assert text.strip() == "Wait."
        assert created.usage == final.usage


async def test_client_tool_round_trip(make_speaker: MakeSpeaker, text_side: ServedModel) -> None:
    box = await make_speaker(f"<think>Hm.</think>{CALL}", "It rains.")
    async with open_client(box) as client:
        fields: dict[str, Any] = {"model": NAME, "max_tokens": 200, "tools": [TOOL]}
        first = await client.messages.create(messages=MESSAGES, **fields)
        [call] = [block for block in first.content if block.type == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain, 4 degrees"}
        history = [*MESSAGES, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = await client.messages.create(messages=history, **fields)
    assert second.content[0].text == "It rains."
    prompt = text_side.tokenizer.decode(box.engine.requests[-1].prompt_token_ids, False)  # type: ignore[attr-defined]
    assert prompt.index("Weather in Oslo?") < prompt.index('"city": "Oslo"') < prompt.index("rain, 4 degrees")


async def test_client_parses_a_model(make_speaker: MakeSpeaker) -> None:
    class Place(pydantic.BaseModel):
        city: str

    box = await make_speaker('{"city": "Oslo"}')
    async with open_client(box) as client:
        parsed = await client.messages.parse(model=NAME, max_tokens=50, messages=MESSAGES, output_format=Place)
    assert parsed.parsed_output == Place(city="Oslo")


async def test_client_counts_tokens(box: Box) -> None:
    async with open_client(box) as client:
        fields: dict[str, Any] = {"model": NAME, "messages": MESSAGES, "tools": [TOOL], "system": "Be brief."}
        counted = await client.messages.count_tokens(**fields)
        message = await client.messages.create(max_tokens=1, **fields)
    assert counted.input_tokens == message.usage.input_tokens


async def test_client_sees_errors_as_its_own(make_box: MakeBox) -> None:
    box = await make_box(api_key=["secret"])
    asked: dict[str, Any] = {"model": NAME, "max_tokens": 4, "messages": MESSAGES}
    async with open_client(box, api_key="wrong") as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(**asked)
    async with open_client(box, api_key="secret") as client:
        assert (await client.messages.create(**asked)).type == "message"
        with pytest.raises(anthropic.NotFoundError, match="served: smol"):
            await client.messages.create(**asked | {"model": "claude"})
        with pytest.raises(anthropic.BadRequestError) as bad:
            await client.messages.create(**asked | {"max_tokens": -1})
        assert bad.value.request_id
    async with open_client(box, api_key=None, auth_token="secret") as client:
        assert (await client.messages.create(**asked)).type == "message"


async def test_engine_failures(make_box: MakeBox) -> None:
    box = await make_box(engine=ScriptedEngine(fails_after=2))
    assert_refused(await ask(box), 500, "api_error")
    response = await ask(box, stream=True)
    assert response.status_code == 200
    assert '"type":"error"' in response.text.split("\n\n")[-2]
    async with open_client(box) as client:
        with pytest.raises(anthropic.APIStatusError, match="api_error"):
            async for _ in await client.messages.create(model=NAME, max_tokens=9, messages=MESSAGES, stream=True):
                pass
    assert_refused(await ask(await make_box(engine=ScriptedEngine(fails_after=0)), stream=True), 500, "api_error")
    away = await make_box(engine=ScriptedEngine(is_ready=False))
    refused = await ask(away)
    assert_refused(refused, 503, "overloaded_error")
    assert refused.headers["retry-after"]
    aborted = await make_box(engine=FakeEngine(Answer(token_ids=[2382, EOS], finish_reason="abort")))
    assert_refused(await ask(aborted), 503, "overloaded_error")


async def test_silence_gets_a_ping(make_box: MakeBox) -> None:
    gate = asyncio.Semaphore(0)
    box = await make_box(engine=ScriptedEngine(gate=gate), sse_keep_alive_interval=0.02)
    async with AsgiCall(box.app, "/v1/messages", BODY | {"stream": True, "max_tokens": 100}) as call:
        await call.next()
        assert await call.next_body() == b": keep-alive\n\n"  # nothing may come before message_start
        gate.release()
        while b"message_start" not in await call.next_body():
            pass
        assert await call.next_body() == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert box.engine.aborted
