"""What the XML-like formats share: a call whose parameters come one by one, each typed by the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from appliance.text.tool_parsers.reading_parser import MarkedToolParser
from appliance.text.tool_parsers.schema_values import ParameterSchemas


class ParameterToolParser(MarkedToolParser):
    """Each parameter is written as soon as it is complete; a call that is cut off keeps its object open."""

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(tools)
        self._schemas = ParameterSchemas(tools)
        self._function = ""
        self._keys: set[str] = set()

    def begin(self, function: str) -> None:
        """A call begins."""
        self._function, self._keys = function, set()
        self.reader.unmark()
        self.writer.start(function)
        self.writer.arguments("{")

    def parameter(self, key: str, text: str) -> None:
        """A parameter is complete; said twice, the first counts."""
        if key in self._keys:
            return
        value = self._schemas.value_json(self._function, key, text)
        self.writer.arguments(f"{', ' if self._keys else ''}{json.dumps(key, ensure_ascii=False)}: {value}")
        self._keys.add(key)

    def end(self) -> None:
        """The call is complete."""
        self.writer.arguments("}")


def strip_newline(text: str) -> str:
    """Without one newline on each side: those belong to the format, the rest to the value."""
    return text.removeprefix("\n").removesuffix("\n")
