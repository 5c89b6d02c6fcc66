"""Readings of JSON that arrives in pieces: pass a value's text on as it comes, or read it whole.

Only the structure is followed (brackets, strings); what is inside is the caller's. Raw control characters in strings,
which models write and JSON forbids, are escaped on the way.
"""

from __future__ import annotations

import json
from typing import Any

from appliance.text.text_reader import Emit, Reading, TextReader

_CLOSERS = {"{": "}", "[": "]"}
_SCALAR = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")


class JsonScanner:
    """Follows one object, array or string, character by character."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._is_in_string = False
        self._is_escaped = False
        self.is_complete = False
        self.is_broken = False

    def scan(self, text: str) -> tuple[str, int]:
        """The text with control characters in strings escaped, and how much of it was used."""
        out: list[str] = []
        for position, character in enumerate(text, 1):
            out.append(self._scan_in_string(character) if self._is_in_string else self._scan_outside(character))
            if self.is_complete or self.is_broken:
                return "".join(out), position
        return "".join(out), len(text)

    def _scan_in_string(self, character: str) -> str:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._is_in_string = False
            self.is_complete = not self._closers
        return character if character >= " " else json.dumps(character)[1:-1]

    def _scan_outside(self, character: str) -> str:
        if character == '"':
            self._is_in_string = True
        elif character in _CLOSERS:
            self._closers.append(_CLOSERS[character])
        elif character in "}]":
            self.is_broken = not self._closers or self._closers.pop() != character
            self.is_complete = not self._closers and not self.is_broken
        return character


def pass_json(reader: TextReader, emit: Emit) -> Reading[bool]:
    """Emit the text of the JSON value that comes next, as it comes. False where it is none, broken or cut off."""
    first = yield from reader.peek()
    if not first or first not in '{["':
        return (yield from _pass_scalar(reader, emit))
    scanner = JsonScanner()
    while True:
        text, num_used = scanner.scan(reader.rest)
        reader.advance(num_used)
        if text:
            emit(text)
        if scanner.is_complete or scanner.is_broken or reader.is_ended:
            return scanner.is_complete
        yield


def read_json(reader: TextReader) -> Reading[tuple[str, Any] | None]:
    """The JSON value that comes next: its text and what it says. None where it is none."""
    parts: list[str] = []
    is_complete = yield from pass_json(reader, parts.append)
    text = "".join(parts)
    try:
        return (text, json.loads(text)) if is_complete else None
    except (ValueError, RecursionError):
        return None


def read_string(reader: TextReader) -> Reading[str | None]:
    """The JSON string that comes next, None where there is none."""
    if (yield from reader.peek()) != '"':
        return None
    value = yield from read_json(reader)
    return None if value is None else str(value[1])


def is_object_next(reader: TextReader) -> Reading[bool]:
    """Whether a brace comes next, followed by a key or another brace."""
    if (yield from reader.peek()) != "{":
        return False
    offset = 1
    while (character := (yield from reader.peek(offset))) and character.isspace():
        offset += 1
    return bool(character) and character in '"}'


def _pass_scalar(reader: TextReader, emit: Emit) -> Reading[bool]:
    text = ""
    while (character := (yield from reader.peek())) in _SCALAR:
        text += character
        reader.advance(1)
    emit(text)
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
