"""GLM 4.5: ``<tool_call>NAME<arg_key>k</arg_key><arg_value>v</arg_value>…</tool_call>``, repeated."""

from __future__ import annotations

from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.parameter_calls import ParameterToolParser, strip_newline

_END, _KEY, _KEY_END = "</tool_call>", "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"


class Glm45ToolParser(ParameterToolParser):
    """The name ends at a newline, the first key or the closing tag; a call may have no arguments."""

    start_markers = ("<tool_call>",)
    end_markers = (_END,)
    inner_markers = (_KEY, _KEY_END, _VALUE, _VALUE_END)

    def parse_block(self, marker: str) -> Reading[bool]:
        """One call."""
        yield from self.reader.skip()
        name, found = yield from self.reader.read_until(("\n", _KEY, _END))
        name = name.strip()
        if (found is None and self.is_cut) or not name or not _is_name(name):
            return False
        self.begin(name)
        if found == "\n":
            found = yield from self._next_key()
        while found == _KEY:
            if not (yield from self._parse_parameter()):
                return True
            found = yield from self._next_key()
        if found == _END or not self.is_cut:
            self.end()
        return True

    def _next_key(self) -> Reading[str | None]:
        _, found = yield from self.reader.read_until((_KEY, _END))
        return found

    def _parse_parameter(self) -> Reading[bool]:
        key, _ = yield from self.reader.read_until((_KEY_END,))
        yield from self.reader.read_until((_VALUE,))
        text, closed = yield from self.reader.read_until((_VALUE_END,))
        if closed is None:
            return False
        self.parameter(key.strip(), strip_newline(text))
        return True


def _is_name(text: str) -> bool:
    return all(character.isalnum() or character in "_-.:/" for character in text)
