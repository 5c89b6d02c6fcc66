"""The grammars behind tool_choice "required" and a named function: whatever the model, the calls can be parsed.

Required: an array of ``{"name": …, "parameters": …}``. Named: the arguments, nothing else.
"""

from __future__ import annotations

import json

from appliance.api.conversation.tools import Tool, ToolChoice
from appliance.api.json_schemas import schema_source
from engine.messages import Grammar

MAX_CALLS = 32  # a small model that has begun to repeat itself must come to an end
_WHITESPACE = r"[ \\n]{0,4}"


def make_tool_grammar(choice: ToolChoice, *, is_parallel: bool) -> Grammar:
    """For a choice that is forced. Raises InvalidRequestError for schemas out of bounds."""
    if choice.mode == "named":
        return Grammar(kind="json_schema", source=_schema(choice.tools[0]), param="tools")
    return Grammar(kind="lark", source=_array_grammar(choice, MAX_CALLS if is_parallel else 1), param="tools")


def _array_grammar(choice: ToolChoice, max_calls: int) -> str:
    """In Lark, so that each schema keeps its own ``$defs``."""
    names = [f"call_{index}" for index in range(len(choice.tools))]
    more = f' (", " call){{0,{max_calls - 1}}}' if max_calls > 1 else ""
    rules = ["%llguidance {}", f'start: "[" call{more} "]"', "call: " + " | ".join(names)]
    for rule, tool in zip(names, choice.tools, strict=True):
        rules.append(f'{rule}: {_literal(_head(tool.name))} {rule}_arguments "}}"')
        rules.append(f"{rule}_arguments: %json {_schema(tool, with_whitespace=True)}")
    return "\n".join(rules) + "\n"


def _head(name: str) -> str:
    return '{"name": ' + json.dumps(name, ensure_ascii=False) + ', "parameters": '


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _schema(tool: Tool, *, with_whitespace: bool = False) -> str:
    """Arguments are an object, even where the schema forgets to say so."""
    schema = {"type": "object", **tool.parameters}
    if schema.get("properties") is None:
        schema["properties"] = {}
    schema.pop("x-guidance", None)
    if with_whitespace:
        schema["x-guidance"] = {"whitespace_pattern": r"[ \n]{0,16}"}
    return schema_source(schema, f"tools.{tool.name}.parameters"[:200])
