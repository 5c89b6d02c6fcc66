"""Kimi K2, between ``<|tool_calls_section_begin|>`` and ``<|tool_calls_section_end|>``, for each call
``<|tool_call_begin|>functions.NAME:IDX<|tool_call_argument_begin|>{…}<|tool_call_end|>``. The id is the header.
"""

from __future__ import annotations

import re

from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.reading_parser import MarkedToolParser

_CALL_BEGIN, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS, _SECTION_END = "<|tool_call_argument_begin|>", "<|tool_calls_section_end|>"
_ID = re.compile(r"(?:functions\.)?([\w.\-]+):\d+")


class KimiK2ToolParser(MarkedToolParser):
    """A section is never content: noise in it and calls with a malformed id are dropped."""

    start_markers = ("<|tool_calls_section_begin|>",)
    inner_markers = (_CALL_BEGIN, _CALL_END, _ARGUMENTS, _SECTION_END)

    def parse_block(self, marker: str) -> Reading[bool]:
        """The whole section."""
        self.reader.unmark()
        while True:
            _, found = yield from self.reader.read_until((_CALL_BEGIN, _SECTION_END))
            if found != _CALL_BEGIN:
                return True
            if not (yield from self._parse_call()):
                return True

    def _parse_call(self) -> Reading[bool]:
        """False where it closed the section or ended the text."""
        header, found = yield from self.reader.read_until((_ARGUMENTS, _CALL_END, _SECTION_END))
        if found == _ARGUMENTS:
            id = header.strip()
            match = _ID.fullmatch(id)
            if match:
                self.writer.start(match.group(1), id)
            yield from self.reader.skip()
            emit = self.writer.arguments if match else _drop
            found = yield from self.reader.pass_until((_CALL_END, _SECTION_END), emit, drops_cut_marker=True)
        return found == _CALL_END


def _drop(text: str) -> None:
    """Not shown to anybody."""
