"""Tools with a model that cannot use them: what the grammar forces, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.caller import CHAT, Caller, calls_of, chat_body

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Paris", "Oslo"]},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
BARE = {"type": "function", "function": {"name": "ping"}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def ask(**fields: Any) -> dict[str, Any]:
    return chat_body("Weather in Oslo?", **{"max_tokens": 64, "tools": [WEATHER, CLOCK], **fields})


def check_call(call: dict[str, Any]) -> None:
    assert call["type"] == "function"
    assert len(call["id"]) >= 9
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "get_weather":
        assert arguments.keys() == {"city", "unit"}
        assert arguments["city"] in ("Paris", "Oslo")
    else:
        assert (call["function"]["name"], arguments) == ("get_time", {})


def test_a_named_function_is_called(box: Caller) -> None:
    choice = box.both(CHAT, ask(tool_choice=NAMED))["choices"][0]
    (call,) = calls_of(choice)
    assert call["function"]["name"] == "get_weather"
    check_call(call)
    assert choice["finish_reason"] in ("stop", "tool_calls")
    assert choice["message"]["content"] in (None, "")


def test_a_required_call_is_made(box: Caller) -> None:
    choice = box.both(CHAT, ask(tool_choice="required", parallel_tool_calls=False))["choices"][0]
    (call,) = calls_of(choice)
    check_call(call)
    assert choice["finish_reason"] == "tool_calls"


def test_several_calls_have_their_own_ids(box: Caller) -> None:
    answer = box.post(CHAT, ask(tool_choice="required", n=2, temperature=1, seed=5, max_tokens=120)).json()
    calls = [call for choice in answer["choices"] for call in calls_of(choice)]
    assert len({call["id"] for call in calls}) == len(calls) >= 2


@pytest.mark.parametrize("tools", [[CLOCK], [BARE]])
def test_a_function_without_arguments(box: Caller, tools: list[Any]) -> None:
    for choice in ("required", {"type": "function", "function": {"name": tools[0]["function"]["name"]}}):
        (call, *_) = calls_of(box.post(CHAT, ask(tools=tools, tool_choice=choice)).json()["choices"][0])
        assert json.loads(call["function"]["arguments"]) == {}


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("max_tokens", [1, 3, 8])
def test_a_call_that_is_cut(box: Caller, choice: Any, max_tokens: int) -> None:
    answer = box.both(CHAT, ask(tool_choice=choice, max_tokens=max_tokens))
    assert answer["choices"][0]["finish_reason"] == "length"


def test_none_means_no_calls(box: Caller) -> None:
    choice = box.both(CHAT, ask(tool_choice="none", max_tokens=8))["choices"][0]
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"]


def test_auto_leaves_it_to_the_model(box: Caller) -> None:
    for fields in ({}, {"tool_choice": "auto"}, {"tool_choice": None}):
        choice = box.both(CHAT, ask(**fields))["choices"][0]
        assert choice["finish_reason"] in ("stop", "length", "tool_calls")
        assert (choice["finish_reason"] == "tool_calls") == bool(calls_of(choice))


def test_a_call_that_the_model_writes_is_parsed(box: Caller) -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius"}}\n</tool_call>'
    choice = box.both(CHAT, ask(structured_outputs={"choice": [text]}))["choices"][0]
    (call,) = calls_of(choice)
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo", "unit": "celsius"}
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None


def test_auto_needs_a_parser(odd_box: Caller) -> None:
    message = odd_box.refused(CHAT, ask(tool_choice="auto"), "tool_choice")
    assert "--enable-auto-tool-choice" in message
    assert "--tool-call-parser" in message
    assert odd_box.post(CHAT, ask(max_tokens=4)).status_code == 200
    assert calls_of(odd_box.post(CHAT, ask(tool_choice=NAMED)).json()["choices"][0])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": None, "tool_choice": "auto"}, "tool_choice"),
        ({"tools": None, "tool_choice": NAMED}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "ghost"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tools": "x"}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": "x", "parameters": []}}]}, "tools[0].function.parameters"),
        ({"tool_choice": NAMED, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(box: Caller, fields: dict[str, Any], param: str) -> None:
    box.refused(CHAT, ask(**fields), param)


def test_results_are_read(box: Caller) -> None:
    call = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
    messages = [
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": "It rains."},
    ]
    answer = box.both(CHAT, ask(messages=messages, max_tokens=12))
    assert answer["choices"][0]["message"]["content"]
