"""Llama 3 and 4: optional ``<|python_tag|>``, then ``{"name": …, "parameters": {…}}``, several separated by ``;``."""

from __future__ import annotations

from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.json_calls import JsonCallReader
from appliance.text.tool_parsers.reading_parser import MarkedToolParser

_TAG = "<|python_tag|>"


class Llama3JsonToolParser(MarkedToolParser):
    """A brace counts only at the start of the text or after another call: JSON inside an answer is content."""

    start_markers = (_TAG,)

    def parse(self) -> Reading[None]:
        """The start decides; later only the tag begins a call."""
        self.reader.mark()
        yield from self.reader.skip()
        is_bare = (yield from self.reader.peek()) == "{" and (yield from self._read_calls())
        if not is_bare:
            self.writer.content(self.reader.since_mark())
        self.reader.unmark()
        yield from super().parse()

    def parse_block(self, marker: str) -> Reading[bool]:
        """Calls after the tag."""
        yield from self.reader.skip()
        return (yield from self._read_calls())

    def _read_calls(self) -> Reading[bool]:
        calls = JsonCallReader(self.reader, self.writer, needs_arguments=True)
        if not (yield from calls.read_call()):
            return False
        while True:
            yield from self.reader.skip(" \t\r\n;,")
            yield from self.reader.take(_TAG)
            yield from self.reader.skip()
            if (yield from self.reader.peek()) != "{":
                return True
            self.reader.mark()
            if not (yield from calls.read_call()):
                self.writer.content(self.reader.since_mark())
                return True
