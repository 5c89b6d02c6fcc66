"""xLAM: an array (or one object) of ``{"name": …, "arguments": {…}}``, bare at the start of the answer or after
``</think>``, in a code fence, after ``[TOOL_CALLS]`` or in ``<tool_call>`` tags.
"""

from __future__ import annotations

from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.reading_parser import JsonBlockParser

_BARE = "</think>"


class XlamToolParser(JsonBlockParser):
    """A fence or bracket that holds no calls is content."""

    start_markers = ("```json", "[TOOL_CALLS]", "<tool_call>", _BARE)
    end_markers = ("```", "</tool_call>")
    stray_markers = ("</tool_call>",)
    needs_arguments = True

    def parse(self) -> Reading[None]:
        """The start of the text is a place for a bare array, too."""
        yield from self.parse_marked("")
        yield from super().parse()

    def parse_block(self, marker: str) -> Reading[bool]:
        """The end of the thinking is no marker: it stays in the text."""
        if marker == _BARE:
            self.writer.content(marker)
            self.reader.mark()
            yield from self.parse_marked("")
            return True
        yield from self.reader.skip()
        if not marker and (yield from self.reader.take("[TOOL_CALLS]")):
            yield from self.reader.skip()
        first = yield from self.reader.peek()
        if first not in ("[", "{"):
            return False
        return (yield from (super().parse_block(marker) if marker else self.parse_calls()))
