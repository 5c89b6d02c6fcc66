"""The grammars behind tool_choice "required" and a named function: whatever the model, the calls can be parsed.

Required: an array of ``{"name": …, "parameters": …}``. Named: the arguments, nothing else. With "auto" the answer is
free, but a call of a ``strict`` function keeps to its schema, where the model's format allows that to be said.
"""

from __future__ import annotations

import json
from typing import Any

from appliance.api.conversation.tools import Tool, ToolChoice
from appliance.api.json_schemas import prepare_schema
from appliance.text.tool_parsers.base import ToolParser
from engine.messages import Grammar

MAX_CALLS = 32  # a small model that has begun to repeat itself must come to an end
_WHITESPACE = r"[ \n]{0,16}"


def make_tool_grammar(choice: ToolChoice, *, is_parallel: bool) -> Grammar:
    """For a choice that is forced. Raises InvalidRequestError for schemas out of bounds."""
    if choice.mode == "named":
        return Grammar(kind="json_schema", source=json.dumps(_prepared(choice.tools[0])), param="tools")
    return Grammar(kind="lark", source=_array_grammar(choice, MAX_CALLS if is_parallel else 1), param="tools")


def make_strict_grammar(choice: ToolChoice, parser: type[ToolParser] | None) -> Grammar | None:
    """For a choice that is open; None where nothing is strict or the format cannot be said."""
    if parser is None or choice.mode != "auto" or not any(tool.function.strict for tool in choice.tools):
        return None
    tags = []
    frames = [parser.frame(tool.name) for tool in choice.tools]
    for tool, frame in zip(choice.tools, frames, strict=True):
        if frame is None:
            return None
        schema = _prepared(tool) if tool.function.strict else {"type": "object"}
        tags.append({"begin": frame.begin, "schema": schema, "end": frame.end})
    triggers = sorted({frame.trigger for frame in frames if frame is not None})
    source = json.dumps({"structures": tags, "triggers": triggers}, ensure_ascii=False)
    return Grammar(kind="structural_tag", source=source, param="tools")


def _array_grammar(choice: ToolChoice, max_calls: int) -> str:
    """In Lark, so that each schema keeps its own ``$defs``."""
    names = [f"call_{index}" for index in range(len(choice.tools))]
    more = f' (", " call){{0,{max_calls - 1}}}' if max_calls > 1 else ""
    rules = ["%llguidance {}", f'start: "[" call{more} "]"', "call: " + " | ".join(names)]
    for rule, tool in zip(names, choice.tools, strict=True):
        rules.append(f'{rule}: {_literal(_head(tool.name))} {rule}_arguments "}}"')
        schema = _prepared(tool) | {"x-guidance": {"whitespace_pattern": _WHITESPACE}}
        rules.append(f"{rule}_arguments: %json {json.dumps(schema, ensure_ascii=False)}")
    return "\n".join(rules) + "\n"


def _head(name: str) -> str:
    return '{"name": ' + json.dumps(name, ensure_ascii=False) + ', "parameters": '


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _prepared(tool: Tool) -> dict[str, Any]:
    """Arguments are an object, even where the schema forgets to say so."""
    schema = {"type": "object", **tool.parameters}
    if schema.get("properties") is None:
        schema["properties"] = {}
    schema.pop("x-guidance", None)
    return prepare_schema(schema, f"tools.{tool.name}.parameters"[:200])
