"""What /v1/messages takes and refuses, always in Anthropic's envelope; and how its messages become a chat."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from appliance.api.messages.content_blocks import read_conversation
from appliance.api.served_model import ServedModel
from tests.api.conftest import MakeBox
from tests.api.harness import NAME, Box
from tests.api.messages.conftest import BODY, MakeSpeaker, ask, assert_refused

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:9/x.png"}}


def prompt_of(box: Box, model: ServedModel) -> str:
    """The last prompt that the engine got."""
    return model.tokenizer.decode(box.engine.submitted[-1].prompt_token_ids, False)


async def test_nulls_are_defaults_and_unknown_fields_are_ignored(box: Box) -> None:
    fields: dict[str, Any] = {
        "system": None, "tools": None, "tool_choice": None, "thinking": None, "stop_sequences": None, "top_k": None,
        "metadata": {"user_id": "u"}, "service_tier": "auto", "container": None, "mcp_servers": [], "whatever": 1,
    }  # fmt: skip
    response = await box.client.post(
        "/v1/messages?beta=true", json=BODY | fields, headers={"anthropic-version": "1999", "anthropic-beta": "x,y"}
    )
    assert response.status_code == 200


async def test_options_reach_the_engine(box: Box) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 5}
    assert (await ask(box, **fields)).status_code == 200
    sampling = box.engine.submitted[-1].sampling
    assert {name: getattr(sampling, name) for name in fields} == fields


async def test_system_as_text_and_as_blocks(box: Box, text_side: ServedModel) -> None:
    await ask(box, system="Be brief.")
    as_text = prompt_of(box, text_side)
    assert as_text.index("Be brief.") < as_text.index("hi")
    blocks = [{"type": "text", "text": "x-anthropic-billing-header: cc=1"},
              {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]  # fmt: skip
    await ask(box, system=blocks)
    assert prompt_of(box, text_side) == as_text


async def test_an_answer_goes_on_from_its_beginning(box: Box, text_side: ServedModel) -> None:
    message = (await ask(box, messages=[USER, {"role": "assistant", "content": "Red is"}])).json()
    assert message["content"][0]["text"] == " red red red red"
    assert prompt_of(box, text_side).endswith("Red is")


async def test_thinking_switches_the_template(make_speaker: MakeSpeaker) -> None:
    box = await make_speaker("ok")
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}, {"type": "disabled"}):
        assert (await ask(box, thinking=thinking, max_tokens=2000)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"model": None}, "model is required"), ({"max_tokens": None}, "max_tokens is required"),
        ({"messages": None}, "messages is required"), ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"),
        ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 99999}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": 5}, "temperature"), ({"top_p": 2}, "top_p"), ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": list("abcde")}, "stop_sequences"), ({"stop_sequences": [""]}, "stop_sequences"),
        ({"messages": ["hi"]}, "messages[0] must"), ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}]}]},
         "messages[0].content[0].content[0].type"),
        ({"messages": [USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]}]},
         "messages[1].content[0].input"),
        ({"system": 5}, "system"), ({"system": [IMAGE]}, "system[0].type"),
        ({"tools": [{"name": "f", "type": "bash_20250124"}]}, "tools[0].type"), ({"tools": [{}]}, "tools[0].name"),
        ({"tools": [{"name": ""}]}, "tools[0].name"),
        ({"tools": [TOOL | {"input_schema": 5}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"), ({"tools": [TOOL], "tool_choice": {}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, "thinking.budget_tokens"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ],
)  # fmt: skip
async def test_refused(box: Box, fields: dict[str, Any], start: str) -> None:
    assert assert_refused(await ask(box, **fields), 400, "invalid_request_error").startswith(start)
    assert (await ask(box)).status_code == 200


async def test_every_error_has_the_envelope(make_box: MakeBox) -> None:
    box = await make_box(api_key=["secret"])
    client, keyed = box.client, {"x-api-key": "secret"}
    assert_refused(await client.post("/v1/messages", json=BODY), 401, "authentication_error")
    wrong = await client.post("/v1/messages/count_tokens", json=BODY, headers={"x-api-key": "no"})
    assert_refused(wrong, 401, "authentication_error")

    async def post(**request: Any) -> httpx.Response:
        headers = keyed | {"content-type": "application/json"} | request.pop("headers", {})
        return await client.post("/v1/messages", headers=headers, **request)

    assert_refused(await post(json=BODY | {"model": "claude"}), 404, "not_found_error")
    for request in ({"content": b"{"}, {"content": b"[]"}, {"json": BODY, "headers": {"content-type": "text/plain"}}):
        assert_refused(await post(**request), 400, "invalid_request_error")
    assert_refused(await post(content=b" " * 3_000_000), 413, "request_too_large")
    assert_refused(await client.get("/v1/messages", headers=keyed), 405, "invalid_request_error")
    assert_refused(await client.get("/v1/messages/batches", headers=keyed), 404, "not_found_error")
    too_long = await post(json=BODY | {"messages": [{"role": "user", "content": "a b " * 9000}]})
    assert "8192" in assert_refused(too_long, 400, "invalid_request_error")
    elsewhere = await client.get("/v1/messages-not", headers=keyed)
    assert set(elsewhere.json()) == {"error"}


async def test_count_tokens_needs_no_limit(box: Box) -> None:
    body = {key: value for key, value in BODY.items() if key in ("model", "messages")}
    counted = await box.client.post("/v1/messages/count_tokens", json=body)
    assert counted.json() == {"input_tokens": (await ask(box)).json()["usage"]["input_tokens"]}
    assert counted.headers["request-id"]
    refused = await box.client.post("/v1/messages/count_tokens", json=body | {"messages": [{"role": "user"}]})
    assert assert_refused(refused, 400, "invalid_request_error").startswith("messages[0].content")
    long = body | {"messages": [{"role": "user", "content": "a b " * 9000}]}
    assert (await box.client.post("/v1/messages/count_tokens", json=long)).json()["input_tokens"] > 8192


def text(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": each} for each in texts]


def test_blocks_become_a_chat() -> None:
    messages = [
        {"role": "user", "content": text("a", "b")},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
            *text("Let me see."), {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
            {"type": "tool_result", "tool_use_id": "t2", "content": text("two"), "is_error": True}, *text("And now?"),
        ]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t3", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3"}]},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": []},
    ]  # fmt: skip

    def call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    assert read_conversation("Be kind.", messages) == [
        {"role": "system", "content": text("Be kind.")},
        {"role": "user", "content": text("a", "b")},
        {"role": "assistant", "content": text("Let me see."), "reasoning": "Hm.",
         "tool_calls": [call("t1", "f", {"x": 1}), call("t2", "g", {})]},
        {"role": "tool", "tool_call_id": "t1", "content": text("one"), "name": "f"},
        {"role": "tool", "tool_call_id": "t2", "content": text("two"), "name": "g"},
        {"role": "user", "content": text("And now?")},
        {"role": "assistant", "content": None, "tool_calls": [call("t3", "f", {})]},
        {"role": "tool", "tool_call_id": "t3", "content": "", "name": "f"},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": ""},
    ]  # fmt: skip


async def test_model_name_of_the_answer(box: Box) -> None:
    assert (await ask(box, model="alias")).json()["model"] == NAME
