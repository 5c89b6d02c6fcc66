"""DeepSeek V3 and R1, between ``<｜tool▁calls▁begin｜>`` and ``<｜tool▁calls▁end｜>``, for each call
``<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`` and the arguments in a JSON code fence, ``<｜tool▁call▁end｜>``.
"""

from __future__ import annotations

from appliance.text.json_reading import pass_json
from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.reading_parser import MarkedToolParser

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_ENDS = (CALL_END, CALLS_END, CALL_BEGIN)


class DeepseekV3ToolParser(MarkedToolParser):
    """The wrapper may be missing; what stands between calls is dropped."""

    start_markers = (CALLS_BEGIN, CALL_BEGIN)
    end_markers = (CALL_END, CALLS_END)
    inner_markers = (SEPARATOR,)

    def parse_block(self, marker: str) -> Reading[bool]:
        """Calls up to the wrapper's end."""
        if marker == CALLS_BEGIN:
            yield from self.reader.skip()
            if not (yield from self.reader.take(CALL_BEGIN)):
                return False
        name = yield from self.read_name()
        if not name:
            return False
        self.writer.start(name)
        self.reader.unmark()
        yield from self.reader.skip()
        yield from pass_json(self.reader, self.writer.arguments)
        _, end = yield from self.reader.read_until(_ENDS)
        if end == CALL_BEGIN:
            self.reader.unread(end)
        return True

    def read_name(self) -> Reading[str]:
        """The function's name, up to the arguments."""
        _, separator = yield from self.reader.read_until((SEPARATOR, *_ENDS))
        if separator != SEPARATOR:
            return ""
        name, brace = yield from self.reader.read_until(("{", *_ENDS))
        if brace != "{":
            return ""
        self.reader.unread(brace)
        return name.partition("```")[0].strip()
