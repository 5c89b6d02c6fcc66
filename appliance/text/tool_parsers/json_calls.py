"""Readings of calls written as JSON: ``{"name": …, "arguments": {…}}``, alone or in an array.

A call is announced as soon as its name is known and its arguments have begun; from then on the arguments are passed
on in the model's own words. A call's failure before that gives False and writes nothing.
"""

from __future__ import annotations

import json

from appliance.text.json_reading import is_object_next, pass_json, read_json, read_string
from appliance.text.text_reader import Reading, TextReader
from appliance.text.tool_parsers.call_writer import CallWriter

_ARGUMENT_KEYS = ("arguments", "parameters")


class JsonCallReader:
    """``needs_arguments``: an object without them is no call; otherwise it is one without arguments."""

    def __init__(self, reader: TextReader, writer: CallWriter, *, needs_arguments: bool = False) -> None:
        self._reader = reader
        self._writer = writer
        self._needs_arguments = needs_arguments

    def read_array(self) -> Reading[bool]:
        """``[call, call, …]``. True once a call was read, even if what follows is broken."""
        reader = self._reader
        num_before = self._writer.num_calls
        if not (yield from reader.take("[")):
            return False
        while True:
            yield from reader.skip(" \t\r\n,")
            if (yield from reader.take("]")) or not (yield from self.read_call()):
                return self._writer.num_calls > num_before

    def read_call(self) -> Reading[bool]:
        """One call. True once it was announced, even if it is cut off."""
        reader = self._reader
        if not (yield from reader.take("{")):
            return False
        name: str | None = None
        arguments: str | None = None
        while not (yield from self._take_end()):
            key = yield from self._read_key()
            if key is None:
                return False
            if key == "name":
                name = yield from read_string(reader)
                if not name:
                    return False
            elif key not in _ARGUMENT_KEYS:
                if (yield from read_json(reader)) is None:
                    return False
            elif name and (yield from is_object_next(reader)):
                yield from self._pass_arguments(name)
                return True
            else:
                arguments = yield from self._read_arguments()
                if arguments is None:
                    return False
        return self._write(name, arguments)

    def _take_end(self) -> Reading[bool]:
        yield from self._reader.skip(" \t\r\n,")
        return (yield from self._reader.take("}"))

    def _read_key(self) -> Reading[str | None]:
        key = yield from read_string(self._reader)
        yield from self._reader.skip()
        if key is None or not (yield from self._reader.take(":")):
            return None
        yield from self._reader.skip()
        return key

    def _pass_arguments(self, name: str) -> Reading[None]:
        self._reader.unmark()  # long arguments need not be kept: from here on it is a call
        self._writer.start(name)
        if (yield from pass_json(self._reader, self._writer.arguments)):
            while not (yield from self._take_end()):  # what else the object says
                key = yield from self._read_key()
                if key is None or (yield from read_json(self._reader)) is None:
                    return

    def _read_arguments(self) -> Reading[str | None]:
        """Arguments before the name, or written as a string or null."""
        read = yield from read_json(self._reader)
        if read is None:
            return None
        text, value = read
        if isinstance(value, str):
            text, value = value, _loads(value)
        if value is None:
            return "{}"
        return text if isinstance(value, dict) else None

    def _write(self, name: str | None, arguments: str | None) -> bool:
        if not name or (arguments is None and self._needs_arguments):
            return False
        self._writer.start(name)
        self._writer.arguments(arguments or "{}")
        return True


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
