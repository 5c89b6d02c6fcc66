"""Constrained answers over HTTP: every spelling, every refusal before a byte is sent, streamed and collected alike."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from tests.api.conftest import MakeBox
from tests.api.core_engine import CoreEngine
from tests.api.harness import Box, assert_error, read_events
from tests.unit.grammar.builders import Engine

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
}


def json_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}


@pytest.fixture
async def core(make_box: MakeBox, mask_engine: Engine) -> Box:
    made: Box = await make_box(CoreEngine(mask_engine))
    return made


async def ask(box: Box, **fields: Any) -> dict[str, Any]:
    """The choice of a chat whose answer is the same collected and streamed."""
    fields = {"max_tokens": 500, "temperature": 1, "seed": 1} | fields
    response = await box.chat(**fields)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    chunks = read_events((await box.chat(stream=True, **fields)).text)
    streamed = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert streamed == choice["message"]["content"]
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]] == [
        choice["finish_reason"]
    ]
    return choice


async def answer(box: Box, **fields: Any) -> str:
    choice = await ask(box, **fields)
    assert choice["finish_reason"] == "stop"
    return str(choice["message"]["content"])


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": json_schema(PERSON, strict=True)},
        {"response_format": json_schema(PERSON, strict=False)},
        {"structured_outputs": {"json": PERSON}},
        {"structured_outputs": {"json": json.dumps(PERSON)}},
        {"structured_outputs": {"json": PERSON, "whitespace_pattern": "[ ]{0,2}"}},
        {"guided_json": PERSON},
        {"guided_json": json.dumps(PERSON), "guided_decoding_backend": "xgrammar"},
    ],
)
async def test_schemas_in_every_spelling(core: Box, fields: dict[str, Any]) -> None:
    value = json.loads(await answer(core, **fields))
    jsonschema.validate(value, PERSON)
    assert set(value) == {"name", "age"}, "what a schema does not mention does not come"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
        {"guided_json_object": True},
    ],
)
async def test_b40_json_object_is_an_object(core: Box, fields: dict[str, Any]) -> None:
    choice = await ask(core, **fields, max_tokens=3000)
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


async def test_whitespace_can_be_left_out(core: Box) -> None:
    for fields in (
        {"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}},
        {"guided_json": PERSON, "guided_whitespace_pattern": "[ ]{0,0}"},
    ):
        assert not re.search(r"[:,]\s", re.sub(r'"[^"]*"', '""', await answer(core, **fields)))


@pytest.mark.parametrize("prefix", ["structured_outputs", "guided"])
async def test_the_other_kinds(core: Box, prefix: str) -> None:
    def fields(name: str, value: Any) -> dict[str, Any]:
        return {f"guided_{name}": value} if prefix == "guided" else {"structured_outputs": {name: value}}

    assert await answer(core, **fields("choice", ["red", "green", "Größe 😀"])) in ("red", "green", "Größe 😀")
    assert re.fullmatch("[a-c]{3}-[0-9]{2}", await answer(core, **fields("regex", "[a-c]{3}-[0-9]{2}")))
    assert await answer(core, **fields("grammar", 'root ::= "yes" | "no"')) in ("yes", "no")
    assert await answer(core, **fields("grammar", 'start: "<" /[0-9]{2}/ ">"')) != ""


async def test_structural_tags(core: Box) -> None:
    tag = {"type": "tag", "begin": "<p>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</p>"}
    for fields in (
        {"response_format": {"type": "structural_tag", "format": tag}},
        {"structured_outputs": {"structural_tag": json.dumps({"format": tag})}},
    ):
        text = await answer(core, **fields)
        assert text.startswith("<p>")
        jsonschema.validate(json.loads(text.removeprefix("<p>").removesuffix("</p>")), PERSON)
    triggered = {
        "type": "structural_tag",
        "structures": [{"begin": "<f=a>", "schema": PERSON, "end": "</f>"}],
        "triggers": ["<f="],
    }
    assert (await ask(core, response_format=triggered, max_tokens=20))["finish_reason"] in ("length", "stop")


async def test_completions_are_constrained_as_well(core: Box) -> None:
    for fields in ({"response_format": json_schema(PERSON)}, {"guided_choice": ["a", "b"]}):
        response = await core.complete(max_tokens=500, temperature=1, n=2, logprobs=1, **fields)
        for choice in response.json()["choices"]:
            assert choice["finish_reason"] == "stop"
            spelled = "".join(choice["logprobs"]["tokens"])
            assert spelled == choice["text"] or "\ufffd" in spelled  # a token may end within a character
            assert choice["text"] in ("a", "b") or jsonschema.validate(json.loads(choice["text"]), PERSON) is None


async def test_choices_and_logprobs(core: Box) -> None:
    response = await core.chat(
        max_tokens=500, temperature=1, n=4, seed=5, logprobs=True, top_logprobs=2, response_format=json_schema(PERSON)
    )
    texts = [choice["message"]["content"] for choice in response.json()["choices"]]
    assert len(set(texts)) == 4
    for choice, text in zip(response.json()["choices"], texts, strict=True):
        jsonschema.validate(json.loads(text), PERSON)
        spelled = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
        assert spelled.decode() == text


async def test_stop_strings_cut_a_constrained_answer(core: Box) -> None:
    choice = await ask(core, structured_outputs={"choice": ["one two three"]}, stop=["two"])
    assert choice["message"]["content"] == "one "
    assert choice["stop_reason"] == "two"


async def test_b22_characters_over_several_tokens(core: Box) -> None:
    text = "你好，世界 😀"
    schema = {"type": "object", "properties": {"v": {"type": "string", "enum": [text]}}, "required": ["v"]}
    streamed = read_events(
        (await core.chat(stream=True, max_tokens=100, response_format=json_schema(schema, strict=True))).text
    )
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in streamed]
    assert not any("\ufffd" in delta for delta in deltas)
    assert json.loads("".join(deltas)) == {"v": text}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format.json_schema", "object"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "JSON schema",
        ),
        ({"response_format": json_schema([])}, "response_format.json_schema.schema", "object"),
        ({"response_format": json_schema({}, strict="yes")}, "response_format.json_schema.strict", "true or false"),
        ({"response_format": json_schema({}, name=5)}, "response_format.json_schema.name", "string"),
        ({"response_format": json_schema({"type": "objekt", "properties": 5})}, "response_format", "properties"),
        ({"response_format": json_schema({"type": "string", "pattern": "(["})}, "response_format", "unclosed"),
        ({"response_format": json_schema({"uniqueItems": True})}, "response_format", "uniqueItems"),
        ({"response_format": json_schema(nested(70))}, "response_format.json_schema.schema", "64 levels"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "format"),
        ({"response_format": {"type": "structural_tag", "format": {"type": "x"}}}, "response_format", "format.type"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "1 to"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]", "string"),
        ({"structured_outputs": {"grammar": " "}}, "structured_outputs.grammar", "empty"),
        ({"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs", "grammar"),
        ({"structured_outputs": {"json": " "}}, "structured_outputs.json", "JSON"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json", "JSON schema"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object", "true"),
        ({"structured_outputs": {"regex": "a\0b"}}, "structured_outputs.regex", "NUL"),
        ({"structured_outputs": {"regex": "(["}}, "structured_outputs", "unclosed"),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": "x" * 300}},
            "structured_outputs.whitespace_pattern",
            "256",
        ),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag", "JSON"),
        ({"guided_regex": "a\0"}, "guided_regex", "NUL"),
        ({"guided_json": {"type": "objekt"}}, "guided_json", "objekt"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "guided_json"),
        (
            {"guided_json": {}, "response_format": {"type": "json_object"}},
            "guided_json",
            "cannot be combined with response_format",
        ),
    ],
)
async def test_b38_wrong_constraints_are_refused_first(
    core: Box, fields: dict[str, Any], param: str, words: str, stream: bool
) -> None:
    assert words in assert_error(await core.chat(stream=stream, max_tokens=8, **fields), 400, param)
    assert words in assert_error(await core.complete(stream=stream, **fields), 400, param)
    assert await answer(core, guided_choice=["still here"]) == "still here"


async def test_b38_a_bound_beyond_what_doubles_hold(core: Box) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9007199254740993000}}}
    assert (await core.chat(max_tokens=32, response_format=json_schema(schema))).status_code == 200


async def test_objects_are_closed_where_that_takes_nothing_away(box: Box) -> None:
    async def sent(schema: Any, **fields: Any) -> Any:
        assert (await box.chat(structured_outputs={"json": schema, **fields})).status_code == 200
        grammar = box.engine.submitted[-1].sampling.grammar
        assert grammar is not None
        return json.loads(grammar.source)

    a, open_a = {"properties": {"a": {}}}, {"properties": {"a": {}}, "additionalProperties": True}
    assert await sent(a) == a | {"additionalProperties": False}
    assert (await sent({"items": a, "$defs": {"x": a}}))["items"]["additionalProperties"] is False
    assert await sent(open_a) == open_a
    for kept in (
        {"allOf": [a, {"properties": {"b": {}}}]},
        a | {"anyOf": [{"properties": {"b": {}}}]},
        a | {"required": ["z"]},
        a | {"patternProperties": {"^b": {}}},
        {"type": "object"},
    ):
        assert await sent(kept) == kept
    assert (await sent({"type": "object"}, disable_additional_properties=True))["additionalProperties"] is False
    assert (await sent({"allOf": [a]}))["allOf"][0]["additionalProperties"] is False


async def test_nulls_and_text_constrain_nothing(box: Box) -> None:
    for fields in ({"response_format": {"type": "text"}}, {"structured_outputs": None, "guided_json": None}):
        assert (await box.chat(**fields)).status_code == 200
        assert box.engine.submitted[-1].sampling.grammar is None
