"""Public faults of other servers, B34 to B40: tools and structured output."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.e2e.caller import CHAT, Caller, calls_of, chat_body, check_error, text_of
from tests.e2e.test_tools import NAMED

CITY: dict[str, Any] = {
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


@pytest.fixture(autouse=True)
def unharmed(box: Caller) -> Any:
    yield
    box.check_canary()


def test_b34_an_empty_list_of_tools_is_none(box: Caller) -> None:
    assert box.both(CHAT, chat_body("say ok", tools=[]))["choices"] == box.chat("say ok").json()["choices"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "ghost"}}])
@pytest.mark.parametrize("tools", [{"tools": []}, {}])
def test_b34_a_choice_needs_tools(box: Caller, choice: Any, tools: dict[str, Any]) -> None:
    box.refused(CHAT, chat_body("say ok", tool_choice=choice, **tools), "tool_choice")


CALL = {"id": "c1", "type": "function", "function": {"name": "get_number", "arguments": "{}"}}
TURNS = [
    {"role": "assistant", "content": None},
    {"role": "assistant"},
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": None, "refusal": None, "function_call": None},
    {"role": "assistant", "content": []},
]


def history(turn: dict[str, Any], call: dict[str, Any], result: str) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "Get the number"},
        {**turn, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": result},
    ]


@pytest.mark.parametrize("turn", TURNS[:4])
@pytest.mark.parametrize("tools", [{}, {"tools": [CITY]}])
def test_b35_calls_and_results_reach_the_prompt(box: Caller, turn: dict[str, Any], tools: dict[str, Any]) -> None:
    def prompt(call: dict[str, Any] = CALL, result: str = "42.69") -> dict[str, Any]:
        answer = box.chat(messages=history(turn, call, result), max_tokens=1, return_prompt_text=True, **tools)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    first = prompt()
    assert "get_number" in first["prompt_text"]
    assert "42.69" in first["prompt_text"]
    longer = prompt(result="42.69 and some more words here")
    assert longer["usage"]["prompt_tokens"] >= first["usage"]["prompt_tokens"] + 5
    renamed = prompt(call={**CALL, "function": {"name": "fetch_number", "arguments": '{"a": 1}'}})
    assert "fetch_number" in renamed["prompt_text"]
    assert renamed["prompt_text"] != first["prompt_text"]


@pytest.mark.parametrize("arguments", ["{}", "", "not json", '{"a": 1', "[1]", {"a": 1}, None, 5])
def test_b35_arguments_of_any_kind(box: Caller, arguments: Any) -> None:
    call = {**CALL, "function": {"name": "get_number", "arguments": arguments}}
    assert box.chat(messages=history(TURNS[0], call, "1"), max_tokens=1).status_code == 200


def test_b35_what_must_have_content(box: Caller) -> None:
    box.refused(CHAT, chat_body(messages=[{"role": "user", "content": None}]), "messages[0].content")
    stray = {"role": "tool", "tool_call_id": "unknown", "content": "x"}
    assert box.chat(messages=[{"role": "user", "content": "hi"}, stray]).status_code in (200, 400)


@pytest.mark.parametrize(
    ("choice", "finishes"), [("required", ("tool_calls",)), (NAMED, ("stop", "tool_calls"))], ids=["required", "named"]
)
def test_b37_a_forced_call(box: Caller, choice: Any, finishes: tuple[str, ...]) -> None:
    answer = box.both(CHAT, chat_body("Hello", tools=[CITY], tool_choice=choice, max_tokens=64))["choices"][0]
    assert answer["finish_reason"] in finishes
    assert not answer["message"]["content"]
    for call in calls_of(answer):
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Oslo")
    assert calls_of(answer)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_b37_a_forced_call_that_is_cut(box: Caller, choice: Any) -> None:
    answer = box.both(CHAT, chat_body("Hello", tools=[CITY], tool_choice=choice, max_tokens=3))["choices"][0]
    assert answer["finish_reason"] == "length"


def test_b37_none_means_none(box: Caller) -> None:
    answer = box.both(CHAT, chat_body("Hello", tools=[CITY], tool_choice="none", max_tokens=8))["choices"][0]
    assert "tool_calls" not in answer["message"]


def form(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "schema": {"type": "object"}}},
        form({"type": "objekt", "properties": 5}),
        form({"type": "object", "properties": {"a": {"type": "string", "pattern": "(["}}, "required": ["a"]}),
        {"response_format": {"type": "yaml"}},
        form({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a"]}),
        form({"type": "array", "items": {"type": "integer", "minimum": 5, "maximum": 1}, "minItems": 1}),
        form({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        form(False),
    ],
)  # fmt: skip
def test_b38_a_broken_schema(box: Caller, fields: dict[str, Any]) -> None:
    response = box.chat(**fields)
    error = response.json()["error"]
    check_error(response, 400, error["param"])
    assert error["param"].startswith("response_format")
    box.refused(CHAT, chat_body(**fields), error["param"])


def test_b38_a_large_bound(box: Caller) -> None:
    bounded = {"type": "integer", "maximum": 9007199254740993000}
    response = box.chat(max_tokens=32, **form({"type": "object", "properties": {"a": bounded}, "required": ["a"]}))
    if response.status_code == 400:
        check_error(response, 400, "response_format")
    elif response.json()["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(text_of(response.json()["choices"][0]) or "")["a"], int)


def longest_space(text: str) -> int:
    outside = re.sub(r'"(\\.|[^"\\])*"', '""', text)
    return max((len(run) for run in re.findall(r"\s+", outside)), default=0)


def test_b40_json_comes_to_its_end(box: Caller) -> None:
    body = chat_body("Reply with an example JSON object", max_tokens=200, response_format={"type": "json_object"})
    choice = box.post(CHAT, body).json()["choices"][0]
    text = text_of(choice) or ""
    assert longest_space(text) <= 16
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(text), dict)
        assert text.endswith("}")
    else:
        assert choice["finish_reason"] == "length"


def test_b40_not_even_a_love_of_whitespace_keeps_it_going(box: Caller) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    strict = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    body = chat_body("go", max_tokens=200, logit_bias={"198": 100, "216": 100}, response_format=strict)
    answer = box.both(CHAT, body)
    text = text_of(answer["choices"][0]) or ""
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 200
    assert json.loads(text).keys() == {"a"}
    assert longest_space(text) <= 16
    assert text.endswith("}")
