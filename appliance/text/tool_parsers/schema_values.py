"""Types the bare text of an XML parameter by the tool's JSON schema."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_INTEGER = re.compile(r"[+-]?\d{1,4000}")
_MAX_PARTS = 200
_MISSING = object()


class ParameterSchemas:
    """The parameter schemas of a request's tools."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function") or tool
            if isinstance(function, Mapping) and isinstance(function.get("parameters"), Mapping):
                self._schemas[str(function.get("name"))] = function["parameters"]

    def value_json(self, function: str, parameter: str, text: str) -> str:
        """The parameter's value as JSON text."""
        schema = self._schemas.get(function, {})
        properties = schema.get("properties")
        own = properties.get(parameter) if isinstance(properties, Mapping) else None
        return json.dumps(typed_value(text, own, schema), ensure_ascii=False)


def typed_value(text: str, schema: Any, root: Mapping[str, Any] | None = None) -> Any:
    """The first of the schema's types that the text can be; a string otherwise.

    Without a schema the text is JSON if it can be. ``root`` resolves local references.
    """
    types = set(_types(schema, root or {}, set()))
    if not types:
        return _first(text, (_as_json,))
    return _first(text, [convert for name, convert in _CONVERSIONS if name in types])


def _first(text: str, conversions: Sequence[Callable[[str], Any]]) -> Any:
    for convert in conversions:
        value = convert(text)
        if value is not _MISSING:
            return value
    return text


def _types(schema: Any, root: Mapping[str, Any], seen: set[int]) -> Iterator[str]:
    """The JSON types that a schema names, in `anyOf` and the like as well; no part is looked at twice."""
    if not isinstance(schema, Mapping) or id(schema) in seen or len(seen) > _MAX_PARTS:
        return
    seen.add(id(schema))
    declared = schema.get("type")
    yield from [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    for key in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(key)
        for part in parts if isinstance(parts, list) else []:
            yield from _types(part, root, seen)
    if isinstance(schema.get("$ref"), str):
        yield from _types(_resolve(schema["$ref"], root), root, seen)
    if declared is None:
        values = schema["enum"] if isinstance(schema.get("enum"), list) else []
        yield from map(_type_name, [*values, schema["const"]] if "const" in schema else values)


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for key in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "string")


def _as_null(text: str) -> Any:
    return None if text.strip() == "null" else _MISSING


def _as_integer(text: str) -> Any:
    return int(text) if _INTEGER.fullmatch(text.strip()) else _MISSING


def _as_number(text: str) -> Any:
    whole = _as_integer(text)
    if whole is not _MISSING:
        return whole
    try:
        value = float(text)
    except ValueError:
        return _MISSING
    return value if math.isfinite(value) else _MISSING


def _as_boolean(text: str) -> Any:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower(), _MISSING)


def _as_kind(kind: type) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        for load in (_as_json, _as_python):
            value = load(text)
            if isinstance(value, kind):
                return value
        return _MISSING

    return convert


def _as_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _MISSING


def _as_python(text: str) -> Any:
    """A Python literal that JSON can say."""
    try:
        value = ast.literal_eval(text.strip())
        json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _MISSING
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _as_string(text: str) -> Any:
    return text


_CONVERSIONS: list[tuple[str, Callable[[str], Any]]] = [
    ("null", _as_null),
    ("integer", _as_integer),
    ("number", _as_number),
    ("boolean", _as_boolean),
    ("object", _as_kind(dict)),
    ("array", _as_kind(list)),
    ("string", _as_string),
]
