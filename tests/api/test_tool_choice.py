"""Tools over HTTP: forced calls always parse, chosen ones come through the model's parser, thinking stays apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.api.app import create_app
from appliance.errors import ApplianceError
from appliance.settings import Settings
from tests.api.conftest import MakeBox
from tests.api.core_engine import CoreEngine
from tests.api.harness import NAME, Box, assert_error, read_events
from tests.api.scripted_engine import EOS, ScriptedEngine
from tests.unit.grammar.builders import Engine, draw_any

WEATHER = {
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
POINT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
DRAW = {
    "type": "function",
    "function": {
        "name": 'draw "it"',
        "parameters": {
            "$defs": {"P": POINT},
            "type": "object",
            "properties": {"p": {"$ref": "#/$defs/P"}},
            "required": ["p"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, DRAW, NOW]
BY_NAME = {tool["function"]["name"]: tool["function"].get("parameters", {"type": "object"}) for tool in TOOLS}
AUTO = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.fixture
async def core(make_box: MakeBox, mask_engine: Engine) -> Box:
    made: Box = await make_box(CoreEngine(mask_engine))
    return made


def scripted(box_tokenizer: Any, text: str) -> ScriptedEngine:
    """An engine that says a text, then EOS."""
    ids = [*box_tokenizer.encode(text, add_special_tokens=False), EOS]
    return ScriptedEngine(rule=lambda request, position: ids[position])


def fold(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """A stream's chunks of one choice as a message, with what must hold for the deltas checked."""
    message: dict[str, Any] = {"content": None, "calls": [], "finish_reason": None, "reasoning": ""}
    for choice in (c for chunk in chunks for c in chunk["choices"] if c["index"] == index):
        delta = choice["delta"]
        if delta.get("content"):
            message["content"] = (message["content"] or "") + delta["content"]
        message["reasoning"] += delta.get("reasoning") or ""
        assert delta.get("tool_calls") != []
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(message["calls"]), "indexes ascend"
                assert call["type"] == "function"
                assert call["function"]["name"]
                message["calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            message["calls"][call["index"]]["arguments"] += call["function"].get("arguments", "")
        assert message["finish_reason"] is None, "nothing follows the finish"
        message["finish_reason"] = choice["finish_reason"]
    return message


async def ask(box: Box, **fields: Any) -> dict[str, Any]:
    """The folded message, which must be the same collected and streamed but for the ids."""
    fields = {"max_tokens": 400, "temperature": 1, "seed": 3} | fields
    response = await box.chat(**fields)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert choice["message"].get("tool_calls") != []
    calls = [{"id": call["id"], **call["function"]} for call in choice["message"].get("tool_calls", [])]
    streamed = fold(read_events((await box.chat(stream=True, **fields)).text))
    assert [dict(call, id="") for call in streamed["calls"]] == [dict(call, id="") for call in calls]
    assert (streamed["content"] or "") == (choice["message"]["content"] or "")
    assert streamed["finish_reason"] == choice["finish_reason"]
    assert streamed["reasoning"] == choice["message"].get("reasoning", "")
    assert len({call["id"] for call in calls}) == len(calls)
    return {**streamed, "calls": calls, "content": choice["message"]["content"]}


@pytest.mark.parametrize("seed", range(6))
async def test_b37_required_is_one_or_more_valid_calls(core: Box, seed: int) -> None:
    message = await ask(core, tools=TOOLS, tool_choice="required", seed=seed, max_tokens=3000)
    assert message["finish_reason"] == "tool_calls"
    assert message["content"] is None
    assert message["calls"]
    for call in message["calls"]:
        jsonschema.validate(json.loads(call["arguments"]), BY_NAME[call["name"]])


@pytest.mark.parametrize("name", BY_NAME)
async def test_b37_named_is_one_call_and_finishes_with_stop(core: Box, name: str) -> None:
    message = await ask(core, tools=TOOLS, tool_choice=named(name))
    assert message["finish_reason"] == "stop"
    assert message["content"] is None
    assert [call["name"] for call in message["calls"]] == [name]
    jsonschema.validate(json.loads(message["calls"][0]["arguments"]), BY_NAME[name])


@pytest.mark.parametrize("choice", ["required", named("get_weather")])
async def test_b37_a_cut_call_is_not_presented_as_whole(core: Box, choice: Any) -> None:
    message = await ask(core, tools=[WEATHER], tool_choice=choice, max_tokens=3)
    assert message["finish_reason"] == "length"


async def test_b37_none_makes_no_calls(core: Box) -> None:
    response = await core.chat(tools=TOOLS, tool_choice="none", max_tokens=5)
    assert "tool_calls" not in response.json()["choices"][0]["message"]
    assert core.engine.submitted[-1].sampling.grammar is None


async def test_parallel_tool_calls_false_is_one_call(core: Box) -> None:
    for seed in range(5):
        message = await ask(core, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed)
        assert len(message["calls"]) == 1


async def test_several_choices_have_their_own_calls(core: Box) -> None:
    response = await core.chat(tools=TOOLS, tool_choice="required", n=3, temperature=1, max_tokens=3000)
    calls = [call for choice in response.json()["choices"] for call in choice["message"]["tool_calls"]]
    assert len({call["id"] for call in calls}) == len(calls) >= 3


async def test_allowed_tools_narrow_the_choice(core: Box) -> None:
    allowed = {"mode": "required", "tools": [named("now")]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    message = await ask(core, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert [call["name"] for call in message["calls"]] == ["now"]
    assert json.loads(message["calls"][0]["arguments"]) == {}


async def test_a_forced_call_goes_before_the_answers_format(core: Box) -> None:
    message = await ask(core, tools=[NOW], tool_choice="required", response_format={"type": "json_object"})
    assert message["calls"]
    for fields in ({"guided_choice": ["a"]}, {"structured_outputs": {"regex": "a"}}):
        refused = await core.chat(tools=[NOW], tool_choice="required", **fields)
        assert "tool_choice" in assert_error(refused, 400, next(iter(fields)))


async def test_b38_a_tool_whose_schema_cannot_be_kept(core: Box) -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "not": {}}}}
    for choice in ("required", named("odd")):
        for stream in (False, True):
            response = await core.chat(tools=[odd], tool_choice=choice, stream=stream)
            assert "not" in assert_error(response, 400, "tools")
    assert (await core.chat(tools=[odd])).status_code == 200, "where nothing is forced it is only text in a prompt"


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("auto", "tool_choice"),
        ("sometimes", "tool_choice"),
        (5, "tool_choice"),
        (named("ghost"), "tool_choice"),
        ({"type": "function"}, "tool_choice"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools.mode"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}, "tool_choice.allowed_tools.tools"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("ghost")]}},
            "tool_choice.allowed_tools.tools",
        ),
    ],
)
async def test_wrong_choices(box: Box, choice: Any, param: str) -> None:
    assert_error(await box.chat(tools=TOOLS, tool_choice=choice), 400, param)


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


async def test_auto_parses_what_the_model_writes(make_box: MakeBox, box: Box) -> None:
    engine = scripted(box.model.tokenizer, f"Let me see. {CALL}\n{CALL.replace('Oslo', 'Paris')}")
    auto = await make_box(engine, **AUTO)
    for fields in ({}, {"tool_choice": "auto"}):
        message = await ask(auto, tools=TOOLS, **fields)
        assert message["content"].strip() == "Let me see."
        assert [json.loads(call["arguments"])["city"] for call in message["calls"]] == ["Oslo", "Paris"]
        assert message["finish_reason"] == "tool_calls"
    assert len((await ask(auto, tools=TOOLS, parallel_tool_calls=False))["calls"]) == 1
    cut = await ask(auto, tools=TOOLS, max_tokens=20)
    assert cut["finish_reason"] == "length"
    for fields in ({"tools": TOOLS, "tool_choice": "none"}, {}):
        text = await ask(auto, **fields)
        assert text["calls"] == []
        assert "<tool_call>" in text["content"]


async def test_searches_for_calls_are_counted(make_box: MakeBox, box: Box) -> None:
    auto = await make_box(scripted(box.model.tokenizer, CALL), **AUTO)
    function = WEATHER["function"]
    message = {"role": "user", "content": "Weather?"}
    await auto.chat(tools=TOOLS, max_tokens=99)
    await auto.chat(tools=TOOLS, stream=True, max_tokens=3)
    await auto.chat()  # nothing to look for
    body = {"model": NAME, "input": "Weather?", "tools": [{"type": "function", **function}], "stream": True}
    assert (await auto.client.post("/v1/responses", json=body)).status_code == 200
    tool = {"name": "get_weather", "input_schema": function["parameters"]}
    body = {"model": NAME, "messages": [message], "tools": [tool], "max_tokens": 99}
    assert (await auto.client.post("/v1/messages", json=body)).status_code == 200
    families = text_string_to_metric_families((await auto.client.get("/metrics")).text)
    (family,) = (found for found in families if found.name == "vllm:tool_call_parser_invocations")
    labels = ("request_type", "mode", "outcome")
    counts = {tuple(sample.labels[label] for label in labels): sample.value for sample in family.samples}
    assert len(counts) == 12
    assert {key for key, count in counts.items() if count} == {
        ("chat_completions", "non_streaming", "tool_call"),
        ("chat_completions", "streaming", "no_tool_call"),
        ("responses", "streaming", "tool_call"),
        ("other", "non_streaming", "tool_call"),
    }
    assert sum(counts.values()) == 4


async def test_without_a_parser_tools_are_only_text(make_box: MakeBox, box: Box) -> None:
    message = await ask(await make_box(scripted(box.model.tokenizer, CALL)), tools=TOOLS)
    assert message["calls"] == []
    assert message["content"] == CALL


async def test_strict_functions_keep_to_their_schema(make_box: MakeBox, mask_engine: Engine) -> None:
    box = await make_box(CoreEngine(mask_engine), **AUTO)
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
    script = box.model.tokenizer.encode('Well: <tool_call>\n{"name": "get_weather", "arguments": {', False)

    def choose(row: Any, ids: Any) -> int:
        position = len(row.output_token_ids)
        if position < len(script):
            assert script[position] in ids
            return int(script[position])
        return EOS if EOS in ids else draw_any(row, ids)

    mask_engine.runner.choose = choose
    try:
        message = await ask(box, tools=[strict, NOW])
    finally:
        mask_engine.runner.choose = draw_any
    assert message["finish_reason"] == "tool_calls"
    jsonschema.validate(json.loads(message["calls"][0]["arguments"]), BY_NAME["get_weather"])


async def test_thinking_comes_before_calls_and_apart(make_box: MakeBox, box: Box) -> None:
    said = f"<think>A {CALL} is no call here.</think>Now: {CALL}"
    thinking = await make_box(scripted(box.model.tokenizer, said), **AUTO, reasoning_parser="qwen3")
    message = await ask(thinking, tools=TOOLS)
    assert message["reasoning"] == f"A {CALL} is no call here."
    assert message["content"].strip() == "Now:"
    assert len(message["calls"]) == 1
    hidden = await ask(thinking, tools=TOOLS, include_reasoning=False)
    assert hidden["reasoning"] == ""
    assert hidden["content"].strip() == "Now:"


async def test_a_grammar_waits_for_the_end_of_thinking(make_box: MakeBox, mask_engine: Engine) -> None:
    box = await make_box(CoreEngine(mask_engine), reasoning_parser="deepseek_r1")
    script = box.model.tokenizer.encode("hm, hm.</think>", False)
    free = mask_engine.runner._free
    mask_engine.runner._free = lambda row: script[len(row.output_token_ids)]
    try:
        message = await ask(box, response_format={"type": "json_schema", "json_schema": {"schema": {"const": 1}}})
    finally:
        mask_engine.runner._free = free
    assert (message["reasoning"], message["content"], message["finish_reason"]) == ("hm, hm.", "1", "stop")


def test_wrong_parser_settings_stop_the_start(tmp_path: Path) -> None:
    plugin = tmp_path / "formats.py"
    for settings in (
        Settings(enable_auto_tool_choice=True),
        Settings(tool_call_parser="nonsense"),
        Settings(reasoning_parser="nonsense"),
        Settings(tool_parser_plugin=plugin),
    ):
        with pytest.raises(ApplianceError, match="--"):
            create_app(settings, [])
    for content in ("TOOL_PARSERS = 5", "1 / 0", ""):
        plugin.write_text(content)
        with pytest.raises(ApplianceError, match="--tool-parser-plugin"):
            create_app(Settings(tool_parser_plugin=plugin), [])


async def test_a_plugin_brings_its_own_format(make_box: MakeBox, box: Box, tmp_path: Path) -> None:
    plugin = tmp_path / "formats.py"
    plugin.write_text(
        "from appliance.text.tool_parsers.hermes import HermesToolParser\n"
        "class Mine(HermesToolParser):\n"
        "    start_markers, end_markers = ('<<',), ('>>',)\n"
        "TOOL_PARSERS = {'mine': Mine}\n"
    )
    said = '<<{"name": "now", "arguments": {}}>>'
    settings = {"enable_auto_tool_choice": True, "tool_call_parser": "mine", "tool_parser_plugin": plugin}
    message = await ask(await make_box(scripted(box.model.tokenizer, said), **settings), tools=TOOLS)
    assert [call["name"] for call in message["calls"]] == ["now"]
