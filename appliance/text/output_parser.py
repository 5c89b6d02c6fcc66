"""The parsers of one choice in a row: first the thinking, then the tool calls in what is left."""

from __future__ import annotations

from appliance.text.events import Content, Event, ToolCallStart
from appliance.text.reasoning_parsers.base import ReasoningParser
from appliance.text.tool_parsers.base import ToolParser


class OutputParser:
    """Either parser may be missing. ``markers`` are the special tokens they need to see.

    ``has_calls``: there are calls, and an answer that stops after them ends with "tool_calls".
    """

    def __init__(self, reasoning: ReasoningParser | None = None, tools: ToolParser | None = None) -> None:
        self._reasoning = None if tools is not None and tools.parses_reasoning else reasoning
        self._tools = tools
        self.has_calls = False
        self.markers = [marker for parser in (self._reasoning, tools) if parser for marker in parser.markers]

    def feed(self, text: str) -> list[Event]:
        """What the next piece of text makes certain."""
        return self._with_tools(self._reasoning.feed(text) if self._reasoning else [Content(text)])

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """What was held back when the text ended; ``is_cut`` where the model had more to say."""
        events = self._with_tools(self._reasoning.finish() if self._reasoning else [])
        return events + self._noted(self._tools.finish(is_cut=is_cut) if self._tools else [])

    def _with_tools(self, events: list[Event]) -> list[Event]:
        if self._tools is None:
            return events
        parsed: list[Event] = []
        for event in events:
            parsed += self._noted(self._tools.feed(event.text)) if isinstance(event, Content) else [event]
        return parsed

    def _noted(self, events: list[Event]) -> list[Event]:
        if self._tools is not None and self._tools.ends_with_calls:
            self.has_calls = self.has_calls or any(isinstance(event, ToolCallStart) for event in events)
        return events
