"""Phi-4-mini: ``functools[{"name": …, "arguments": {…}}, …]``."""

from __future__ import annotations

from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.json_calls import JsonCallReader
from appliance.text.tool_parsers.reading_parser import MarkedToolParser


class Phi4MiniJsonToolParser(MarkedToolParser):
    """The word alone is content; only a bracket right after it makes it a marker."""

    start_markers = ("functools",)

    def parse_block(self, marker: str) -> Reading[bool]:
        """The array."""
        return (yield from JsonCallReader(self.reader, self.writer).read_array())
