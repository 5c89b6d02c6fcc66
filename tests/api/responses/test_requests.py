"""What /v1/responses takes and refuses: fields, and every form of input, with the path of what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.api.responses.input_items import read_items, to_messages
from appliance.errors import InvalidRequestError
from tests.api.harness import Box, assert_error
from tests.api.responses.conftest import respond

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
IMAGE = {"type": "input_image", "image_url": "http://127.0.0.1:9/x.png"}
MESSAGE = {"role": "user", "content": "hi"}


async def test_nulls_are_defaults_and_unknown_fields_are_ignored(store_box: Box) -> None:
    response = await respond(
        store_box, instructions=None, tools=None, tool_choice=None, text=None, reasoning=None, include=None,
        metadata=None, previous_response_id=None, store=None, background=None, truncation=None, top_logprobs=None,
        stream_options={"include_obfuscation": False}, whatever=1, prompt=None, conversation=None,
    )  # fmt: skip
    assert response.status_code == 200


async def test_options_reach_the_engine(store_box: Box) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 5, "presence_penalty": 0.5}
    assert (await respond(store_box, **fields, stop=[" x"], max_output_tokens=3)).status_code == 200
    sampling = store_box.engine.submitted[-1].sampling
    assert {name: getattr(sampling, name) for name in fields} == fields
    assert sampling.max_tokens == 3


async def test_stop_strings_end_a_response(store_box: Box) -> None:
    answer = (await respond(store_box, stop="red red", max_output_tokens=50)).json()
    assert answer["status"] == "completed"
    assert answer["output"][0]["content"][0]["text"] == " "


async def test_auto_without_tools_is_none(store_box: Box) -> None:
    assert (await respond(store_box, tool_choice="auto")).status_code == 200


async def test_template_variables_and_effort(store_box: Box) -> None:
    fields = {"reasoning": {"effort": "low", "summary": "auto"}, "chat_template_kwargs": {"x": 1}}
    answer = (await respond(store_box, **fields)).json()
    assert answer["reasoning"] == {"effort": "low", "summary": None}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"), ({"input": 5}, "input"), ({"input": []}, "input"), ({"input": {}}, "input"),
        ({"input": ["hi"]}, "input[0]"), ({"input": [MESSAGE, {"role": "robot", "content": "x"}]}, "input[1].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": ["hi"]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": ["message"]}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "content": 5}]}, "input[0].content"),
        ({"background": True}, "background"), ({"prompt": {"id": "p"}}, "prompt"),
        ({"conversation": "c"}, "conversation"),
        ({"max_output_tokens": 0}, "max_output_tokens"), ({"max_output_tokens": 9999999}, "max_output_tokens"),
        ({"max_output_tokens": "many"}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"), ({"top_p": 0}, "top_p"), ({"truncation": "middle"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata.a"), ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL | {"parameters": 5}]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"), ({"tool_choice": 5}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.mode"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [5]}},
         "tool_choice.tools"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -2}, "top_logprobs"), ({"stop": [""]}, "stop"),
        ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
    ],
)  # fmt: skip
async def test_refused(store_box: Box, fields: dict[str, Any], param: str) -> None:
    message = assert_error(await respond(store_box, **fields), 400, param)
    assert message.startswith(param.split("[")[0].split(".")[0])
    assert (await respond(store_box)).status_code == 200


async def test_too_long_an_input(store_box: Box) -> None:
    message = assert_error(await respond(store_box, input="a b " * 9000), 400, "input", "context_length_exceeded")
    assert "8192" in message


async def test_unknown_model(store_box: Box) -> None:
    assert_error(await respond(store_box, model="nope"), 404, "model", "model_not_found")


def test_items_become_a_chat() -> None:
    items = read_items(
        [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"},
                                                            {"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": '{"x": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Thought."}]},
            {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"},
        ]
    )  # fmt: skip

    def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    text = lambda *texts: [{"type": "text", "text": each} for each in texts]  # noqa: E731
    assert to_messages(items, "Be kind.") == [
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": text("a", "b")},
        {"role": "assistant", "content": text("Let me see."), "reasoning": "Hm.",
         "tool_calls": [call("c1", "f", "{}"), call("c2", "g", '{"x": 1}')]},
        {"role": "tool", "tool_call_id": "c1", "content": "one", "name": "f"},
        {"role": "tool", "tool_call_id": "c2", "content": text("two"), "name": "g"},
        {"role": "assistant", "content": text("No.")},
        {"role": "assistant", "content": None, "reasoning": "Thought.", "tool_calls": [call("c3", "f", "{}")]},
    ]  # fmt: skip


def test_instructions_join_a_leading_system_message() -> None:
    items = read_items([{"role": "system", "content": "B"}, {"role": "user", "content": "hi"}])
    assert to_messages(items, "A")[0] == {"role": "system", "content": "A\n\nB"}
    assert to_messages(items, None)[0] == {"role": "system", "content": "B"}


def test_text_after_a_call_joins_its_turn() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    said = {"role": "assistant", "content": "Wait."}
    done = {"type": "function_call_output", "call_id": "c", "output": ""}
    messages = to_messages(read_items([call, said, done]), None)
    assert [message["role"] for message in messages] == ["assistant", "tool"]
    assert messages[0]["content"] == "Wait."
    assert messages[1]["content"] == ""


def test_plain_items_stay_as_they_are() -> None:
    """What the store holds can be read again."""
    first = read_items([{"role": "user", "content": [{"type": "input_text", "text": "a"}]}])
    assert read_items(first) == first
    with pytest.raises(InvalidRequestError):
        read_items([{"type": "message"}])
