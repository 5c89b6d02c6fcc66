"""Parsers for output that a grammar has forced into shape: tool_choice "required" and a named function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.json_calls import JsonCallReader
from appliance.text.tool_parsers.reading_parser import ReadingToolParser


class RequiredToolParser(ReadingToolParser):
    """The whole text is an array of ``{"name": …, "parameters": {…}}``."""

    def parse(self) -> Reading[None]:
        """The array."""
        self.reader.mark()
        yield from self.reader.skip()
        if not (yield from JsonCallReader(self.reader, self.writer).read_array()):
            self.writer.content(self.reader.since_mark())
        self.reader.unmark()
        yield from self.reader.pass_rest(self.writer.content)


class NamedToolParser(ReadingToolParser):
    """The whole text is the arguments of the one function in ``tools``.

    The finish_reason stays "stop", as OpenAI has it for a function that the caller named.
    """

    ends_with_calls = False

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        super().__init__(tools)
        self._name = str(tools[0]["function"]["name"])

    def parse(self) -> Reading[None]:
        """All of it."""
        if not (yield from self.reader.peek()):
            return
        self.writer.start(self._name)
        yield from self.reader.pass_rest(self.writer.arguments)
