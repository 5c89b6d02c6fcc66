"""Structural tags → a Lark grammar: free text in which certain tags, once begun, are completed as they should be.

Two shapes are read: ``{"structures": [{"begin", "schema", "end"}], "triggers": […]}``, and ``{"format": …}`` with the
nested types that `_FORMATS` lists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from llguidance import regex_to_lark

MAX_DEPTH = 32


def tags_to_lark(spec: Any, json_options: Mapping[str, Any]) -> str:
    """The grammar as Lark text. Raises ValueError that names the wrong place."""
    if not isinstance(spec, dict):
        raise ValueError("must be an object")
    writer = _LarkWriter(json_options)
    root = writer.write(spec["format"], "format", 0) if "format" in spec else writer.write_legacy(spec)
    return writer.finish(root)


class _LarkWriter:
    """Collects rules; `write` returns an expression that stands for a format."""

    def __init__(self, json_options: Mapping[str, Any]) -> None:
        self._json_options = dict(json_options)
        self._rules: list[str] = []

    def finish(self, root: str) -> str:
        """The whole grammar."""
        return "\n".join(["%llguidance {}", f"start: {root}", *self._rules]) + "\n"

    def write_legacy(self, spec: dict[str, Any]) -> str:
        """``structures`` and ``triggers``."""
        tags = []
        for index, structure in enumerate(_list(spec, "structures", "structures")):
            path = f"structures[{index}]"
            schema = _get(structure, "schema", dict, path)
            content = {"type": "json_schema", "json_schema": schema}
            begin, end = _get(structure, "begin", str, path), _get(structure, "end", str, path)
            tags.append({"type": "tag", "begin": begin, "content": content, "end": end})
        return self._triggered_tags({"triggers": spec.get("triggers"), "tags": tags}, "", 0)

    def write(self, spec: Any, path: str, depth: int) -> str:
        """An expression for the format at `path`."""
        if depth > MAX_DEPTH:
            raise ValueError(f"{path} is nested deeper than {MAX_DEPTH} levels")
        kind = _get(spec, "type", str, path)
        writer = _FORMATS.get(kind)
        if writer is None:
            raise ValueError(f"{path}.type {kind[:32]!r} is not one of {', '.join(_FORMATS)}")
        return writer(self, spec, path, depth)

    def _const_string(self, spec: Any, path: str, depth: int) -> str:
        return _literal(_get(spec, "value", str, path))

    def _json_schema(self, spec: Any, path: str, depth: int) -> str:
        schema = {**_get(spec, "json_schema", dict, path), "x-guidance": self._json_options}
        return self._rule("%json " + json.dumps(schema))

    def _regex(self, spec: Any, path: str, depth: int) -> str:
        return self._terminal(f"/{regex_to_lark(_get(spec, 'pattern', str, path))}/")

    def _any_text(self, spec: Any, path: str, depth: int) -> str:
        return self._terminal(r"/(.|\n)*/")

    def _sequence(self, spec: Any, path: str, depth: int) -> str:
        parts = _list(spec, "elements", f"{path}.elements")
        texts = [self.write(part, f"{path}.elements[{index}]", depth + 1) for index, part in enumerate(parts)]
        return self._rule(" ".join(texts))

    def _or(self, spec: Any, path: str, depth: int) -> str:
        parts = _list(spec, "elements", f"{path}.elements")
        texts = [self.write(part, f"{path}.elements[{index}]", depth + 1) for index, part in enumerate(parts)]
        return self._rule(" | ".join(texts))

    def _tag(self, spec: Any, path: str, depth: int) -> str:
        return self._rule(self._tag_after(spec, path, depth, ""))

    def _tag_after(self, spec: Any, path: str, depth: int, trigger: str) -> str:
        """A tag of whose beginning `trigger` has been written."""
        begin = _get(spec, "begin", str, path)
        content = _get(spec, "content", dict, path)
        end = _end_of(spec, path)
        if content.get("type") == "any_text":
            return f"{_literal(begin[len(trigger) :])} {self._text_until(end)}"
        return f"{_literal(begin[len(trigger) :])} {self.write(content, f'{path}.content', depth + 1)} {_literal(end)}"

    def _tags_with_separator(self, spec: Any, path: str, depth: int) -> str:
        tags = _list(spec, "tags", f"{path}.tags")
        tag = self._rule(" | ".join(self._tag(t, f"{path}.tags[{i}]", depth + 1) for i, t in enumerate(tags)))
        separator = _literal(_get(spec, "separator", str, path))
        more = "" if spec.get("stop_after_first") else f" ({separator} {tag})*"
        return self._rule(f"{tag}{more}" if spec.get("at_least_one") else f"({tag}{more})?")

    def _triggered_tags(self, spec: Any, path: str, depth: int) -> str:
        triggers = _list(spec, "triggers", f"{path}.triggers".lstrip("."))
        if not all(isinstance(trigger, str) and trigger for trigger in triggers):
            raise ValueError("triggers must be non-empty strings")
        tags = _list(spec, "tags", f"{path}.tags".lstrip("."))
        begun = [self._triggered(tag, f"{path}.tags[{i}]", depth, triggers) for i, tag in enumerate(tags)]
        tag = self._rule(" | ".join(begun))
        first = f"{tag} " if spec.get("at_least_one") else ""
        more = "" if spec.get("stop_after_first") else f"{tag}*"
        if spec.get("stop_after_first") and not first:
            more = f"{tag}?"
        # Text after the last tag must not hold a trigger that begins no tag.
        banned = "|".join(regex_to_lark(_escape(trigger)) for trigger in triggers)
        tail = self._terminal(rf"/(.|\n)*/ & ~/(.|\n)*({banned})(.|\n)*/")
        return self._rule(f"{first}{more} {tail}")

    def _triggered(self, tag: Any, path: str, depth: int, triggers: list[str]) -> str:
        begin = _get(tag, "begin", str, path)
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if trigger is None:
            raise ValueError(f"{path}.begin starts with none of the triggers")
        head = self._text_until(trigger)
        return self._rule(f"{head} {self._tag_after(tag, path, depth, trigger)}")

    def _text_until(self, marker: str) -> str:
        if not marker:
            return self._terminal(r"/(.|\n)*/")
        name = f"r{len(self._rules)}"
        self._rules.append(rf"{name}[suffix={_literal(marker)}]: /(.|\n)*/")
        return name

    def _rule(self, body: str) -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def _terminal(self, body: str) -> str:
        name = f"T{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name


_FORMATS: dict[str, Callable[[_LarkWriter, Any, str, int], str]] = {
    "const_string": _LarkWriter._const_string,
    "json_schema": _LarkWriter._json_schema,
    "regex": _LarkWriter._regex,
    "any_text": _LarkWriter._any_text,
    "sequence": _LarkWriter._sequence,
    "or": _LarkWriter._or,
    "tag": _LarkWriter._tag,
    "triggered_tags": _LarkWriter._triggered_tags,
    "tags_with_separator": _LarkWriter._tags_with_separator,
}


def _get(spec: Any, name: str, kind: type, path: str) -> Any:
    value = spec.get(name) if isinstance(spec, dict) else None
    if not isinstance(value, kind):
        raise ValueError(f"{path}.{name} must be {'a string' if kind is str else 'an object'}")
    return value


def _list(spec: Any, name: str, path: str) -> list[Any]:
    value = spec.get(name) if isinstance(spec, dict) else None
    if not isinstance(value, list) or not value:
        raise ValueError(f"{path} must be a list, not empty")
    return value


def _end_of(spec: Any, path: str) -> str:
    end = spec.get("end", "")
    if isinstance(end, list) and end:
        end = end[0]
    if not isinstance(end, str):
        raise ValueError(f"{path}.end must be a string")
    return end


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _escape(text: str) -> str:
    return "".join(f"\\{c}" if c in r"\.+*?()|[]{}^$#&-~/" else c for c in text)
