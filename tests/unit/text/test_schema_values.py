"""XML parameter text becomes the value that the tool's schema asks for."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.text.tool_parsers.schema_values import ParameterSchemas, typed_value


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("3", {"type": "integer"}, 3),
        (" -3\n", {"type": "integer"}, -3),
        ("3.5", {"type": "integer"}, "3.5"),
        ("3", {"type": "number"}, 3),
        ("3.5", {"type": "number"}, 3.5),
        ("nan", {"type": "number"}, "nan"),
        ("inf", {"type": "number"}, "inf"),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
        ("True", {"type": "boolean"}, True),
        ("0", {"type": "boolean"}, False),
        ("yes", {"type": "boolean"}, "yes"),
        ("3", {"type": "string"}, "3"),
        ('"quoted"', {"type": "string"}, '"quoted"'),
        ("null", {"type": "string"}, "null"),
        ("null", {"type": ["string", "null"]}, None),
        ("none", {"type": ["string", "null"]}, "none"),
        ("nil", {"anyOf": [{"type": "null"}, {"type": "string"}]}, "nil"),
        ("5", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, 5),
        ("x", {"oneOf": [{"type": "integer"}, {"type": "string"}]}, "x"),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
        ("{'a': None}", {"type": "object"}, {"a": None}),
        ("[1, 2", {"type": "array"}, "[1, 2"),
        ('"[1]"', {"type": "array"}, '"[1]"'),
        ("none", {"enum": ["none", "full"]}, "none"),
        ("2", {"enum": [1, 2]}, 2),
        ("true", {"const": True}, True),
        ('{"a": 1}', None, {"a": 1}),
        ("3", None, 3),
        ("plain", None, "plain"),
        ("NaN", None, "NaN"),
        ("[" * 100_000, None, "[" * 100_000),
        ("3", {"$ref": "#/$defs/N"}, 3),
        ("3", {"$ref": "#/nowhere"}, 3),
        ("3", {"type": 7}, 3),
        ("3", True, 3),
        ("3", {"anyOf": 5}, 3),
    ],
)
def test_typed_value(text: str, schema: Any, value: Any) -> None:
    found = typed_value(text, schema, {"$defs": {"N": {"type": "integer"}}})
    assert found == value
    assert type(found) is type(value)


def test_a_schema_that_refers_to_itself_ends() -> None:
    root: dict[str, Any] = {"$defs": {"T": {"anyOf": [{"$ref": "#/$defs/T"} for _ in range(50)]}}}
    assert typed_value("3", {"$ref": "#/$defs/T"}, root) == 3


def test_odd_tools_have_no_schemas() -> None:
    schemas = ParameterSchemas([{}, {"function": None}, {"function": {"name": "f", "parameters": {"properties": 3}}}])
    assert schemas.value_json("f", "x", "é") == '"é"'
    assert schemas.value_json("unknown", "x", "3") == "3"
