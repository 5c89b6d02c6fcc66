"""JSON schemas on their way to the engine: bounded, and closed to properties that they don't mention.

Whether a schema makes sense, and whether all of its keywords are supported, the engine's grammar compiler says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from appliance.api.fields import refuse

MAX_DEPTH = 64
MAX_BYTES = 512 * 1024
_ONE_SCHEMA = ("items", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames")
_MANY_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_OPENERS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref")


def schema_source(schema: dict[str, Any], param: str, *, closes_all: bool = False) -> str:
    """The prepared schema as the JSON text of a `Grammar`. Raises InvalidRequestError."""
    source = msgspec.json.encode(prepare_schema(schema, param, closes_all=closes_all))
    if len(source) > MAX_BYTES:
        raise refuse(param, f"has {len(source)} bytes, more than the limit of {MAX_BYTES}")
    return source.decode()


def prepare_schema(schema: dict[str, Any], param: str, *, closes_all: bool = False) -> dict[str, Any]:
    """The schema as it is compiled. Raises InvalidRequestError where it is nested too deeply.

    An object that lists its properties and says nothing of others gets no others: an answer that a schema allows, of
    all it allows, and one that comes to its end. Schemas that are combined with ``allOf`` are left as they are, because
    one part may not close what another part opens; `closes_all` closes every object.
    """
    check_depth(schema, param)
    if not closes_all and any(_is_combined(part) for part in _parts(schema)):
        return schema
    closed: dict[str, Any] = _closed(schema, closes_all)
    return closed


def check_depth(value: dict[str, Any], param: str) -> None:
    """Raises InvalidRequestError where the schema nests deeper than `MAX_DEPTH` levels."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _containers(parent)]
        if not level:
            return
    raise refuse(param, f"is nested deeper than {MAX_DEPTH} levels")


def _containers(value: Any) -> Iterator[Any]:
    children = value.values() if isinstance(value, dict) else value
    return (child for child in children if isinstance(child, (dict, list)))


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and all schemas in it. The depth has been checked."""
    if not isinstance(schema, dict):
        return
    yield schema
    for child in _children(schema):
        yield from _parts(child)


def _children(schema: dict[str, Any]) -> Iterator[Any]:
    for name in _MANY_SCHEMAS:
        if isinstance(schema.get(name), dict):
            yield from schema[name].values()
    for name in _LISTS_OF_SCHEMAS:
        if isinstance(schema.get(name), list):
            yield from schema[name]
    for name in (*_ONE_SCHEMA, "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield schema[name]


def _is_combined(schema: dict[str, Any]) -> bool:
    """Whether an object's properties come from more than one place."""
    has_alternatives = any(name in schema for name in ("anyOf", "oneOf", "allOf", "$ref"))
    return (has_alternatives and "properties" in schema) or len(schema.get("allOf") or ()) > 1


def _closed(schema: Any, closes_all: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for name in _MANY_SCHEMAS:
        if isinstance(schema.get(name), dict):
            closed[name] = {key: _closed(part, closes_all) for key, part in schema[name].items()}
    for name in _LISTS_OF_SCHEMAS:
        if isinstance(schema.get(name), list):
            closed[name] = [_closed(part, closes_all) for part in schema[name]]
    for name in (*_ONE_SCHEMA, "additionalProperties"):
        if isinstance(schema.get(name), dict):
            closed[name] = _closed(schema[name], closes_all)
    if _is_closable(schema, closes_all):
        closed["additionalProperties"] = False
    return closed


def _is_closable(schema: dict[str, Any], closes_all: bool) -> bool:
    if not isinstance(schema.get("properties"), dict):
        return closes_all and schema.get("type") == "object" and "additionalProperties" not in schema
    required = schema.get("required")
    # What is required must stay possible.
    if isinstance(required, list) and not set(map(str, required)) <= set(schema["properties"]):
        return False
    return not any(name in schema for name in _OPENERS)
