"""MiniMax M2, in ``<minimax:tool_call>`` tags: ``<invoke name="f"><parameter name="k">v</parameter></invoke>`` …"""

from __future__ import annotations

from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.parameter_calls import ParameterToolParser, strip_newline

_BEGIN, _END = "<minimax:tool_call>", "</minimax:tool_call>"
_INVOKE, _INVOKE_END = "<invoke name=", "</invoke>"
_PARAMETER, _PARAMETER_END = "<parameter name=", "</parameter>"


class MinimaxM2ToolParser(ParameterToolParser):
    """Several invocations in one block; the block's text around them is dropped."""

    start_markers = (_BEGIN,)
    end_markers = (_END,)

    def parse_block(self, marker: str) -> Reading[bool]:
        """All invocations of a block."""
        yield from self.reader.skip()
        if not (yield from self.reader.take(_INVOKE)):
            return False
        num_before = self.writer.num_calls
        found: str | None = _INVOKE
        while found == _INVOKE:
            name, closed = yield from self.reader.read_until((">",))
            if closed is None:
                return self.writer.num_calls > num_before
            self.begin(_unquoted(name))
            if not (yield from self._parse_parameters()):
                return True
            _, found = yield from self.reader.read_until((_INVOKE, _END))
        return True

    def _parse_parameters(self) -> Reading[bool]:
        """False where the text ends within the call."""
        while True:
            _, found = yield from self.reader.read_until((_PARAMETER, _INVOKE_END, _END))
            if found != _PARAMETER:
                break
            key, _ = yield from self.reader.read_until((">",))
            text, closed = yield from self.reader.read_until((_PARAMETER_END,))
            if closed is None:
                return False
            self.parameter(_unquoted(key), strip_newline(text))
        if found is not None or not self.is_cut:
            self.end()
        if found == _END:
            self.reader.unread(found)
        return found is not None


def _unquoted(text: str) -> str:
    return text.strip().strip("\"'")
