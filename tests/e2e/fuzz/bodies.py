"""Structure-aware bodies: a valid request of a route, with a few of its fields, or what is deep in them, replaced."""

from __future__ import annotations

import copy
import random
import string
from collections.abc import Callable
from typing import Any

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
USER = {"role": "user", "content": "hi"}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 3},
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3, "store": False},
    "/v1/messages": {"model": "", "messages": [USER], "max_tokens": 3},
    "/v1/messages/count_tokens": {"model": "", "messages": [USER]},
    "/invocations": {"messages": [USER], "max_tokens": 3},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
INTEGERS = [0, 1, -1, 2, 3, 5, 16, 127, 128, 129, 255, 49151, 49152, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1,
            2**63, -(2**63), -(2**63) - 1, 2**64, 10**30]  # fmt: skip
FLOATS = [0.0, -0.0, 0.5, 1.0, 1.5, 2.0, -1.5, 1e-12, 1e-320, 1e30, -1e30, 1e308, 16.0]
TEXTS = ["", " ", "a", "hi", "null", "true", "1", "text", "auto", "none", "required", "user", "assistant", "tool",
         "system", "developer", "json_object", "json_schema", "function", "input_text", "<|im_end|>", "<|im_start|>",
         "<tool_call>", "</think>", "{{ 1 }}", "{% for x in y %}", "\x00", "\ud83d", "\ufdd0", "\ufeff", "é", "你好",
         "😀" * 30, "a" * 3000, "\r\n\r\n", "../../etc/passwd", "%s%n", "'", '"', "\\", "(a+)+$", "[", "(?<=x)y",
         "start: /a+/", "root ::= root", "__proto__", "constructor", "id_" + "x" * 200]  # fmt: skip
NAMES = ["type", "role", "content", "text", "function", "name", "arguments", "parameters", "properties", "items", "id",
         "tool_calls", "tool_call_id", "input", "json_schema", "schema", "strict", "enum", "pattern", "anyOf", "$ref",
         "$defs", "required", "additionalProperties", "minLength", "maximum", "const", "format"]  # fmt: skip
Maker = Callable[[random.Random], Any]


def make_body(rng: random.Random, path: str, document: dict[str, Any], model: str) -> Any:
    """A body for `path`: mostly an object that is nearly right."""
    if rng.random() < 0.02:
        return make_value(rng)
    body = copy.deepcopy(VALID[path])
    if "model" in body:
        body["model"] = model
    fields = list_fields(path, document)
    gentle = [name for name in GENTLE if name in fields]
    for name in rng.sample(gentle, min(rng.randrange(4), len(gentle))):
        body[name] = GENTLE[name](rng)
    if rng.random() < 0.6:
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
            _mutate(rng, body, fields)
    if rng.random() < 0.3:
        body["stream"] = True
    return body


def list_fields(path: str, document: dict[str, Any]) -> dict[str, Any]:
    """Name → schema of all fields that the route's bodies have."""
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    found: dict[str, Any] = {}
    for part in schema.get("anyOf", [schema]):
        found |= document["components"]["schemas"][part["$ref"].rsplit("/", 1)[1]]["properties"]
    return found


def _mutate(rng: random.Random, body: dict[str, Any], fields: dict[str, Any]) -> None:
    name = rng.choice(list(fields))
    kind = rng.random()
    if kind < 0.15 and body:
        body.pop(rng.choice(list(body)))
    elif kind < 0.4:
        _replace_somewhere(rng, body)
    elif name in SPECIAL and rng.random() < 0.7:
        body[name] = SPECIAL[name](rng)
    elif kind < 0.75:
        body[name] = _of_schema(rng, fields[name])
    else:
        body[name] = make_value(rng)


def _replace_somewhere(rng: random.Random, value: Any) -> None:
    """Walk down at random and put another value there, or another one beside it."""
    while isinstance(value, (dict, list)) and value:
        key: Any = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        if rng.random() < 0.4 or not isinstance(value[key], (dict, list)) or not value[key]:
            value[key] = make_value(rng)
            return
        if isinstance(value, dict) and rng.random() < 0.1:
            value[rng.choice(NAMES)] = make_value(rng)
        value = value[key]


def _of_schema(rng: random.Random, schema: dict[str, Any]) -> Any:
    for part in [schema, *schema.get("anyOf", ())]:
        if "enum" in part:
            return rng.choice(part["enum"])
    kinds = [part.get("type") for part in [schema, *schema.get("anyOf", ())] if part.get("type") not in (None, "null")]
    match rng.choice(kinds or ["any"]):
        case "integer":
            return rng.choice(INTEGERS)
        case "number":
            return rng.choice([*FLOATS, *INTEGERS])
        case "boolean":
            return rng.random() < 0.5
        case "string":
            return rng.choice(TEXTS)
        case "array":
            return [make_value(rng, 2) for _ in range(rng.randrange(4))]
        case "object":
            return {rng.choice(NAMES): make_value(rng, 2) for _ in range(rng.randrange(4))}
    return make_value(rng)


def make_value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON value; seldom deep."""
    kind = rng.random()
    if depth < 4 and kind < 0.15:
        return [make_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if depth < 4 and kind < 0.35:
        return {rng.choice([*NAMES, *TEXTS]): make_value(rng, depth + 1) for _ in range(rng.randrange(4))}
    if kind < 0.36:
        return nest(rng.choice((60, 130, 900)))
    return rng.choice([None, True, False, rng.choice(INTEGERS), rng.choice(FLOATS), rng.choice(TEXTS), _noise(rng)])


def nest(depth: int) -> Any:
    """An object in an object in …"""
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def _noise(rng: random.Random) -> str:
    letters = string.printable + "äß中😀\u200b\u202e"
    return "".join(rng.choice(letters) for _ in range(rng.randrange(20)))


def _messages(rng: random.Random) -> list[Any]:
    return [_message(rng) for _ in range(rng.randrange(1, 5))]


def _message(rng: random.Random) -> Any:
    message: dict[str, Any] = {
        "role": rng.choice(["system", "developer", "user", "assistant", "tool", "function", "narrator"]),
        "content": rng.choice(["hi", "", None, [{"type": "text", "text": "hi"}], make_value(rng)]),
    }
    if rng.random() < 0.3:
        arguments = rng.choice(["{}", '{"a": 1}', "{", {"a": 1}, None, make_value(rng)])
        message["tool_calls"] = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    for name in ("name", "tool_call_id", "reasoning", "reasoning_content", "refusal", "prefix"):
        if rng.random() < 0.1:
            message[name] = rng.choice([*TEXTS, make_value(rng)])
    return message


def make_schema(rng: random.Random, depth: int = 0) -> Any:
    """A JSON schema, or nearly one."""
    if rng.random() < 0.05:
        return make_value(rng)
    kind = rng.choice(["string", "integer", "number", "boolean", "null", "object", "array", "object", "nothing"])
    schema: dict[str, Any] = {} if kind == "nothing" else {"type": kind}
    if kind == "object":
        names = rng.sample(TEXTS[:8], rng.randrange(3)) if depth < 3 else []
        schema["properties"] = {name: make_schema(rng, depth + 1) for name in names}
        schema["required"] = rng.choice([list(schema["properties"]), ["a"], []])
    if kind == "array" and depth < 3:
        schema["items"] = make_schema(rng, depth + 1)
    extras: dict[str, Maker] = {
        "enum": lambda rng: [make_value(rng, 3) for _ in range(rng.randrange(3))],
        "pattern": lambda rng: rng.choice(TEXTS),
        "minLength": lambda rng: rng.choice(INTEGERS),
        "maxLength": lambda rng: rng.choice(INTEGERS),
        "minimum": lambda rng: rng.choice([*INTEGERS, *FLOATS]),
        "maxItems": lambda rng: rng.choice(INTEGERS),
        "minItems": lambda rng: rng.choice(INTEGERS),
        "anyOf": lambda rng: [make_schema(rng, depth + 2) for _ in range(rng.randrange(3))],
        "allOf": lambda rng: [make_schema(rng, depth + 2) for _ in range(rng.randrange(3))],
        "$ref": lambda rng: rng.choice(["#", "#/properties/a", "#/$defs/x", "http://x/y", ""]),
        "format": lambda rng: rng.choice(["date", "uuid", "email", "odd"]),
        "additionalProperties": lambda rng: rng.choice([True, False, {"type": "string"}, 5]),
    }
    for name in rng.sample(list(extras), rng.choice((0, 0, 1, 1, 2))):
        schema[name] = extras[name](rng)
    return schema


def _response_format(rng: random.Random) -> Any:
    schema = {"name": rng.choice(TEXTS), "schema": make_schema(rng), "strict": rng.choice([True, False, None])}
    return rng.choice(
        [
            {"type": "json_object"},
            {"type": "text"},
            {"type": "json_schema", "json_schema": schema},
            {"type": "structural_tag", "format": make_value(rng)},
            {"type": rng.choice(TEXTS)},
        ]
    )


def _structured(rng: random.Random) -> Any:
    makers: dict[str, Maker] = {
        "json": make_schema,
        "regex": lambda rng: rng.choice(TEXTS),
        "choice": lambda rng: [rng.choice(TEXTS) for _ in range(rng.randrange(4))],
        "grammar": lambda rng: rng.choice(TEXTS),
        "json_object": lambda rng: True,
        "structural_tag": make_value,
    }
    return {name: makers[name](rng) for name in rng.sample(list(makers), rng.choice((1, 1, 1, 2)))}


def _tools(rng: random.Random) -> Any:
    function = {"name": rng.choice(["f", *TEXTS]), "parameters": make_schema(rng), "strict": rng.random() < 0.5}
    return [TOOL, {"type": "function", "function": function}][: rng.randrange(3)]


def _ids(rng: random.Random) -> Any:
    return [rng.choice(INTEGERS) for _ in range(rng.randrange(4))]


SPECIAL: dict[str, Maker] = {
    "messages": _messages,
    "input": lambda rng: rng.choice([_messages(rng), rng.choice(TEXTS), make_value(rng)]),
    "response_format": _response_format,
    "structured_outputs": _structured,
    "guided_json": make_schema,
    "guided_regex": lambda rng: rng.choice(TEXTS),
    "tools": _tools,
    "tool_choice": lambda rng: rng.choice(
        ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}, {"type": "any"}, make_value(rng)]
    ),
    "logit_bias": lambda rng: {str(rng.choice(INTEGERS)): rng.choice([*FLOATS, 100, -100, "x"]) for _ in range(3)},
    "prompt": lambda rng: rng.choice([rng.choice(TEXTS), _ids(rng), [_ids(rng)], ["a", "b"], make_value(rng)]),
    "stop": lambda rng: rng.choice([rng.choice(TEXTS), [rng.choice(TEXTS) for _ in range(rng.randrange(6))]]),
    "tokens": _ids,
    "stop_token_ids": _ids,
    "allowed_token_ids": _ids,
    "chat_template_kwargs": lambda rng: {rng.choice(["a", "tools", "enable_thinking", "range"]): make_value(rng)},
}

# Values that are right, most of them: what the engine does with them is under test, too.
GENTLE: dict[str, Maker] = {
    "temperature": lambda rng: rng.choice([0, 1e-9, 0.01, 0.7, 1, 2]),
    "top_p": lambda rng: rng.choice([1e-9, 0.1, 0.9, 1]),
    "top_k": lambda rng: rng.choice([-1, 0, 1, 50, 49151, 10**9]),
    "min_p": lambda rng: rng.choice([0, 0.05, 1]),
    "repetition_penalty": lambda rng: rng.choice([0.01, 0.5, 1, 1.3, 100]),
    "presence_penalty": lambda rng: rng.choice([-2, 0, 2]),
    "frequency_penalty": lambda rng: rng.choice([-2, 0.1, 2]),
    "seed": lambda rng: rng.choice([0, -1, 7, 2**63 - 1, -(2**63)]),
    "n": lambda rng: rng.choice([1, 2, 3]),
    "stop": lambda rng: rng.choice([[], " ", ["e", "the", "\n"], "\u4f60", ["a" * 500]]),
    "min_tokens": lambda rng: rng.choice([0, 1, 3]),
    "ignore_eos": lambda rng: True,
    "skip_special_tokens": lambda rng: False,
    "logit_bias": lambda rng: rng.choice([{"2": 100}, {"2382": 100, "4461": 99.9}, {str(i): -100 for i in range(300)}]),
    "allowed_token_ids": lambda rng: rng.choice([[2], [2382], [10813, 242, 218], list(range(1000))]),
    "bad_words": lambda rng: rng.choice([["Paris"], ["\u4f60\u597d"], [" "], ["e", "a", "i"]]),
    "stop_token_ids": lambda rng: rng.choice([[2382], [0, 1, 2], []]),
    "logprobs": lambda rng: rng.choice([True, 1, 0, 5]),
    "top_logprobs": lambda rng: rng.choice([0, 1, 20]),
    "prompt_logprobs": lambda rng: rng.choice([0, 1, 20]),
    "logprob_token_ids": lambda rng: [1, 2, 3],
    "echo": lambda rng: True,
    "return_token_ids": lambda rng: True,
    "truncate_prompt_tokens": lambda rng: rng.choice([1, 2, 100, -1]),
    "truncation_side": lambda rng: rng.choice(["left", "right"]),
    "cache_salt": lambda rng: rng.choice(["a", "b" * 128]),
    "priority": lambda rng: rng.choice([-5, 0, 9]),
    "stream_interval": lambda rng: rng.choice([1, 3, 1000]),
    "response_format": lambda rng: {"type": "json_object"},
    "structured_outputs": lambda rng: rng.choice(
        [{"regex": "[ab]{0,9}"}, {"choice": ["x", "\u4f60"]}, {"grammar": 'root ::= "a" | "b"'}, {"json": {"const": 1}}]
    ),
    "tools": lambda rng: [TOOL],
    "tool_choice": lambda rng: rng.choice(["auto", "none"]),
    "reasoning_effort": lambda rng: "low",
    "prompt": lambda rng: rng.choice([[1, 2, 3], [[1], [2]], ["a", "b"], "\U0001f600" * 9, [0], "x" * 3000]),
    "input": lambda rng: [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    "instructions": lambda rng: "Be brief.",
    "system": lambda rng: rng.choice(["Be brief.", [{"type": "text", "text": "Be brief."}]]),
    "stop_sequences": lambda rng: ["a", "\n"],
    "store": lambda rng: True,
}
