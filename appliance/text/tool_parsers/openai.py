"""gpt-oss: calls, thinking and answer from the harmony channels."""

from __future__ import annotations

from appliance.text.harmony import MARKERS, read_harmony
from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.reading_parser import ReadingToolParser


class OpenAIToolParser(ReadingToolParser):
    """Takes the reasoning parser's place: one reading of the channels gives all."""

    markers = MARKERS
    parses_reasoning = True

    def parse(self) -> Reading[None]:
        """All messages."""
        yield from read_harmony(self.reader, self.writer)
