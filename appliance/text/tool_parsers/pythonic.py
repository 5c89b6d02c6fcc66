"""Pythonic calls (Llama 3.2 and 4, ToolACE): the whole answer is ``[f(a=1, b="x"), g()]``.

Only keyword arguments with literal values make a call; anything else is content. A call is written when its closing
bracket has come.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.reading_parser import MarkedToolParser

_NAMES = {"true": True, "false": False, "null": None}


class PythonicToolParser(MarkedToolParser):
    """A list counts at the start of the answer, or after Llama 4's marker."""

    start_markers = ("<|python_start|>",)
    end_markers = ("<|python_end|>",)

    def parse(self) -> Reading[None]:
        """The start of the answer is a place for a list, too."""
        self.reader.mark()
        yield from self.reader.skip()
        if not (yield from self._parse_list()):
            self.writer.content(self.reader.since_mark())
        self.reader.unmark()
        yield from super().parse()

    def parse_block(self, marker: str) -> Reading[bool]:
        """The list after the marker."""
        yield from self.reader.skip()
        return (yield from self._parse_list())

    def _parse_list(self) -> Reading[bool]:
        if not (yield from self.reader.take("[")):
            return False
        num_before = self.writer.num_calls
        while True:
            yield from self.reader.skip(" \t\r\n,")
            if (yield from self.reader.take("]")):
                break
            source = yield from self._read_call()
            call = _parse_call(source)
            if call is None:
                if self.writer.num_calls > num_before:
                    self.writer.content(source)
                break
            self.writer.start(call[0])
            self.writer.arguments(call[1])
        return self.writer.num_calls > num_before

    def _read_call(self) -> Reading[str]:
        """The text up to the bracket that closes the first one opened, or as far as it can be a call."""
        source = ""
        depth = 0
        while character := (yield from self.reader.peek()):
            if not depth and not _can_begin_call(source + character):
                return source
            if character in "\"'":
                source += yield from self._read_quoted()
                continue
            source += character
            self.reader.advance(1)
            depth += (character in "([{") - (character in ")]}")
            if not depth and character == ")":
                return source
        return source

    def _read_quoted(self) -> Reading[str]:
        quote = yield from self.reader.peek()
        for delimiter in (quote * 3, quote):
            if (yield from self.reader.take(delimiter)):
                break
        if delimiter == quote and (yield from self.reader.take(quote)):
            return quote * 2
        source = delimiter
        while True:
            text, found = yield from self.reader.read_until(("\\", delimiter))
            source += text + (found or "")
            if found != "\\":
                return source
            escaped = yield from self.reader.peek()
            source += escaped
            self.reader.advance(len(escaped))


def _can_begin_call(source: str) -> bool:
    name, bracket, _ = source.partition("(")
    name = name.strip() if bracket else name.rstrip()
    parts = name.split(".")
    last_is_open = not bracket and not parts[-1]
    return all(part.isidentifier() for part in (parts[:-1] if last_is_open else parts))


def _parse_call(source: str) -> tuple[str, str] | None:
    """Name and arguments as JSON, None where it is no call."""
    try:
        call = ast.parse(source.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        arguments = {_key(keyword): _literal(keyword.value) for keyword in call.keywords}
        return ast.unparse(call.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


def _key(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ValueError("**arguments")
    return keyword.arg


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(element) for element in node.elts]
    if isinstance(node, ast.Dict):
        if any(key is None for key in node.keys):
            raise ValueError("** in a dict")
        return {_literal(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    return ast.literal_eval(node)
