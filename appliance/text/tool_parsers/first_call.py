"""Keeps the first call of another parser and drops the others: ``parallel_tool_calls`` false."""

from __future__ import annotations

from appliance.text.events import Event, ToolCallArguments, ToolCallStart
from appliance.text.tool_parsers.base import ToolParser


class FirstCallParser(ToolParser):
    """Content passes as it is."""

    def __init__(self, parser: ToolParser) -> None:
        super().__init__(parser.tools)
        self._parser = parser
        self.markers = parser.markers
        self.parses_reasoning = parser.parses_reasoning
        self.ends_with_calls = parser.ends_with_calls

    def feed(self, text: str) -> list[Event]:
        """What the next piece of text makes certain."""
        return [event for event in self._parser.feed(text) if _is_kept(event)]

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """What was held back when the text ended."""
        return [event for event in self._parser.finish(is_cut=is_cut) if _is_kept(event)]


def _is_kept(event: Event) -> bool:
    return not isinstance(event, ToolCallStart | ToolCallArguments) or event.index == 0
