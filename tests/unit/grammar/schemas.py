"""Random JSON schemas of bounded depth, with the keywords that strict mode allows."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
NAMES = ("a", "name", "Größe", "第一", "x y", 'q"uote', "0", "$ref_like")

_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1000, 1000),
    # The default model has no tokens for the first bytes of what lies beyond.
    st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=("Cs",)), max_size=6),
    st.sampled_from(["你好，世界 😀", "\n", "\\"]),
)


def _bounded(kind: str, low: int, high: int) -> st.SearchStrategy[Schema]:
    def make(bounds: tuple[int, int, bool, bool]) -> Schema:
        first, second = sorted(bounds[:2])
        schema: Schema = {"type": kind}
        if bounds[2]:
            schema["minimum"] = first
        if bounds[3]:
            schema["maximum"] = second
        return schema

    return st.tuples(st.integers(low, high), st.integers(low, high), st.booleans(), st.booleans()).map(make)


_strings = st.one_of(
    st.just({"type": "string"}),
    st.integers(0, 12).map(lambda n: {"type": "string", "maxLength": n}),
    st.integers(1, 5).map(lambda n: {"type": "string", "minLength": n, "maxLength": n + 3}),
    st.sampled_from(["^[a-z]{1,5}$", "^[0-9]{3}-[A-F]+$", "^(red|green)?$"]).map(
        lambda p: {"type": "string", "pattern": p}
    ),
    st.sampled_from(["date", "uuid", "ipv4", "time"]).map(lambda f: {"type": "string", "format": f}),
)
_leaves = st.one_of(
    _strings,
    _bounded("integer", -1000, 1000),
    _bounded("number", -50, 50),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}]),
    st.lists(_scalars, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    _scalars.map(lambda value: {"const": value}),
    st.just({"type": ["string", "null"]}),
    st.just({"$ref": "#/$defs/shared"}),
)


def _objects(children: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def make(properties: Schema, num_optional: int) -> Schema:
        required = list(properties)[: max(0, len(properties) - num_optional)]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    return st.builds(make, st.dictionaries(st.sampled_from(NAMES), children, max_size=4), st.integers(0, 2))


def _containers(children: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    arrays = st.tuples(children, st.integers(0, 2), st.integers(0, 2)).map(
        lambda t: {"type": "array", "items": t[0], "minItems": t[1], "maxItems": t[1] + t[2]}
    )
    choices = st.lists(children, min_size=1, max_size=3).map(lambda options: {"anyOf": options})
    return st.one_of(_objects(children), arrays, choices)


def schemas() -> st.SearchStrategy[Schema]:
    """Root objects with a definition that any part may refer to, itself recursive."""
    inner = st.recursive(_leaves, _containers, max_leaves=8)
    node = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/shared"}, {"type": "null"}]}},
        "required": ["v", "next"],
        "additionalProperties": False,
    }
    return _objects(inner).map(lambda root: {**root, "$defs": {"shared": node}})
