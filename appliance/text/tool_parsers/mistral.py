"""Mistral: ``[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`` (tokenizers up to v10), ``[TOOL_CALLS]name[ARGS]{…}`` or
``[TOOL_CALLS]name{…}`` (v11 and later), repeated. Ids are nine letters or digits.
"""

from __future__ import annotations

import secrets
import string

from appliance.text.json_reading import pass_json
from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.json_calls import JsonCallReader
from appliance.text.tool_parsers.reading_parser import MarkedToolParser

_ID_CHARACTERS = string.ascii_letters + string.digits


class MistralToolParser(MarkedToolParser):
    """Which of the shapes it is shows after the marker."""

    start_markers = ("[TOOL_CALLS]",)
    inner_markers = ("[ARGS]", "[CALL_ID]")

    def make_call_id(self, name: str, index: int) -> str:
        """The only form that Mistral's templates accept back."""
        return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))

    def parse_block(self, marker: str) -> Reading[bool]:
        """An array, or one named call."""
        yield from self.reader.skip()
        first = yield from self.reader.peek()
        calls = JsonCallReader(self.reader, self.writer)
        if first == "[":
            return (yield from calls.read_array())
        if first == "{":
            return (yield from calls.read_call())
        return (yield from self._parse_named())

    def _parse_named(self) -> Reading[bool]:
        name, marker = yield from self.reader.read_until(("[CALL_ID]", "[ARGS]", "[TOOL_CALLS]", "{", "\n\n"))
        id = None
        if marker == "[CALL_ID]":
            id, marker = yield from self.reader.read_until(("[ARGS]", "[TOOL_CALLS]", "{"))
        if not name.strip() or marker not in ("[ARGS]", "{"):
            return False
        self.writer.start(name.strip(), id)
        self.reader.unmark()
        if marker == "{":
            self.reader.unread(marker)
        yield from self.reader.skip()
        yield from pass_json(self.reader, self.writer.arguments)
        return True
