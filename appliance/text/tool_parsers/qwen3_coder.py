"""Qwen3-Coder: ``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``, on many lines."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.parameter_calls import ParameterToolParser, strip_newline

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


class Qwen3CoderToolParser(ParameterToolParser):
    """The outer tags, a parameter's end and a header's ``>`` may be missing."""

    outer_begin, outer_end = "<tool_call>", "</tool_call>"

    @property
    def start_markers(self) -> Sequence[str]:  # type: ignore[override]
        """The outer tag, or a function without it."""
        return (self.outer_begin, _FUNCTION)

    @property
    def end_markers(self) -> Sequence[str]:  # type: ignore[override]
        """Both closing tags."""
        return (_FUNCTION_END, self.outer_end)

    def parse_block(self, marker: str) -> Reading[bool]:
        """One function."""
        if marker == self.outer_begin:
            yield from self.reader.skip()
            if not (yield from self.reader.take(_FUNCTION)):
                return False
        name, closed = yield from self._read_header()
        if not name or closed is None:
            return False
        self.begin(name)
        yield from self._parse_parameters()
        return True

    def _read_header(self) -> Reading[tuple[str, str | None]]:
        """A name, up to the bracket or where the line ends without one."""
        name, end = yield from self.reader.read_until((">", "\n", "<"))
        if end == "<":
            self.reader.unread(end)
        return name.strip(), end

    def _parse_parameters(self) -> Reading[None]:
        ends = (_FUNCTION_END, self.outer_end, self.outer_begin, _FUNCTION)
        while True:
            _, found = yield from self.reader.read_until((_PARAMETER, *ends))
            if found == _PARAMETER:
                key, _ = yield from self._read_header()
                text, closed = yield from self.reader.read_until((_PARAMETER_END, _PARAMETER, *ends))
                if closed is None and self.is_cut:
                    return
                self.parameter(key, strip_newline(text))
                if closed not in (None, _PARAMETER_END):
                    self.reader.unread(closed)
                continue
            if found is None and self.is_cut:
                return
            self.end()
            if found in (self.outer_begin, _FUNCTION):
                self.reader.unread(found)
            elif found == _FUNCTION_END:
                yield from self.take_end()
            return


class SeedOssToolParser(Qwen3CoderToolParser):
    """The same grammar in ByteDance Seed's tags."""

    outer_begin, outer_end = "<seed:tool_call>", "</seed:tool_call>"
