"""Grammar-driven bodies: schemas, regular expressions, grammars and tools that are mostly right, so that they compile.

What `bodies` makes is refused at the door more often than not; these reach the grammar compiler and the masks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

NAMES = ("a", "name", "Größe", "x y", 'q"uote', "0", "$odd", "__proto__")
PATTERNS = ("^[a-z]{1,5}$", "^(red|green)?$", "^[0-9]{2}-[A-F]+$", "a*b+", "^\\w+$", "[^x]", "(a|b|cd){2,3}")
FORMATS = ("date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "uri", "hostname", "duration")
MAX_DEPTH = 4
_SHARED: dict[str, Any] = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["v"],
}


def make_schema(rng: random.Random) -> dict[str, Any]:
    """A root object; one of a few has a definition that its parts refer to."""
    root = _object(rng, 0)
    return root | {"$defs": {"node": _SHARED}} | ({"$schema": "http://x/y"} if rng.random() < 0.1 else {})


def _part(rng: random.Random, depth: int) -> Any:
    if depth >= MAX_DEPTH:
        return rng.choice([{"type": "boolean"}, {"type": "null"}, {"const": 1}, {}])
    return rng.choice(_PARTS)(rng, depth)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randrange(4))
    schema: dict[str, Any] = {"type": "object", "properties": {name: _part(rng, depth + 1) for name in names}}
    schema["required"] = [name for name in names if rng.random() < 0.6]
    if rng.random() < 0.5:
        schema["additionalProperties"] = rng.choice([False, {"type": "string"}, True])
    if rng.random() < 0.1:
        schema["minProperties"] = rng.randrange(3)
    return schema


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(3)
    schema: dict[str, Any] = {"type": "array", "items": _part(rng, depth + 1), "minItems": low}
    if rng.random() < 0.7:
        schema["maxItems"] = low + rng.choice((0, 1, 3, 1000))
    if rng.random() < 0.2:
        schema["prefixItems"] = [_part(rng, depth + 1) for _ in range(rng.randrange(3))]
    return schema


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.random()
    if kind < 0.3:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind < 0.5:
        return {"type": "string", "format": rng.choice(FORMATS)}
    low = rng.choice((0, 1, 5, 300))
    return {"type": "string", "minLength": low, "maxLength": low + rng.choice((0, 3, 10_000))}


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    low, high = sorted((rng.uniform(-1e6, 1e6), rng.uniform(-10, 10)))
    schema: dict[str, Any] = {"type": rng.choice(("integer", "number"))}
    names = rng.sample(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), rng.randrange(3))
    for name in names:
        schema[name] = rng.choice((0.5, 3, 10)) if name == "multipleOf" else (low if "inimum" in name else high)
    return schema


def _choice(rng: random.Random, depth: int) -> dict[str, Any]:
    parts = [_part(rng, depth + 1) for _ in range(rng.randrange(1, 4))]
    return {rng.choice(("anyOf", "oneOf", "allOf", "anyOf")): parts}


def _values(rng: random.Random, depth: int) -> dict[str, Any]:
    values = [None, True, 0, -1.5, "", "a", "你好 😀", "\n\\", [], {}, [1, "x"], {"a": None}]
    return {"enum": rng.sample(values, rng.randrange(1, 5))} if rng.random() < 0.6 else {"const": rng.choice(values)}


_PARTS: list[Callable[[random.Random, int], dict[str, Any]]] = [
    *(_object, _array, _string, _number, _choice, _values, _string, _number),
    lambda rng, depth: {"$ref": "#/$defs/node"},
    lambda rng, depth: {"type": ["string", "null", "integer"]},
]


def make_regex(rng: random.Random, depth: int = 0) -> str:
    """A regular expression that ends."""
    kind = rng.random()
    if depth > 3 or kind < 0.4:
        return rng.choice(("a", "[a-z]", "\\d", "\\s", "[^b]", "é", "\\.", "x{0,3}", "(?:yes|no)"))
    if kind < 0.6:
        return make_regex(rng, depth + 1) + make_regex(rng, depth + 1)
    if kind < 0.8:
        return f"({make_regex(rng, depth + 1)}|{make_regex(rng, depth + 1)})"
    return f"(?:{make_regex(rng, depth + 1)}){rng.choice(('*', '+', '?', '{2}', '{1,4}', '{3,}'))}"


def make_grammar(rng: random.Random) -> str:
    """Rules of which some refer to each other, in one of the two notations."""
    names = ["start", "item", "word"][: rng.randrange(1, 4)]
    if rng.random() < 0.5:
        return "\n".join(f"{name}: {_alternatives(rng, names[at + 1 :], '|')}" for at, name in enumerate(names))
    root = ["root", *names[1:]]
    return "\n".join(f"{name} ::= {_alternatives(rng, root[at + 1 :], '|')}" for at, name in enumerate(root))


def _alternatives(rng: random.Random, later: list[str], bar: str) -> str:
    def one() -> str:
        words = [rng.choice(['"a"', '"b c"', '"\\n"', *(later or ['"z"'])]) for _ in range(rng.randrange(1, 4))]
        return " ".join(words)

    return f" {bar} ".join([*(one() for _ in range(rng.randrange(1, 4))), *later])


def make_tools(rng: random.Random) -> list[dict[str, Any]]:
    """A few tools with schemas of their own."""
    names = rng.sample(("get_weather", "f", "a-b_c", "search"), rng.randrange(1, 4))
    return [
        {"type": "function", "function": {"name": name, "parameters": make_schema(rng), "strict": rng.random() < 0.5}}
        for name in names
    ]


def constrain(rng: random.Random, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A body of a generating route with one such constraint; few tokens are asked for all the same."""
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "schema": lambda: {"structured_outputs": {"json": make_schema(rng)}},
        "regex": lambda: {"structured_outputs": {"regex": make_regex(rng)}},
        "grammar": lambda: {"structured_outputs": {"grammar": make_grammar(rng)}},
        "choice": lambda: {"structured_outputs": {"choice": rng.sample(("a", "b", "你好", "x y z"), 2)}},
    }
    if "chat" in path or path == "/invocations":
        makers["format"] = lambda: {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": make_schema(rng), "strict": True},
            }
        }
        makers["tools"] = lambda: _with_tools(rng)
    return body | makers[rng.choice(list(makers))]() | {"stream": rng.random() < 0.5}


def _with_tools(rng: random.Random) -> dict[str, Any]:
    tools = make_tools(rng)
    named = {"type": "function", "function": {"name": tools[0]["function"]["name"]}}
    return {"tools": tools, "tool_choice": rng.choice(["required", named, "none"])}
