"""The parsers of one choice in a row: first the thinking, then the tool calls in what is left."""

from __future__ import annotations

from collections.abc import Callable

from appliance.text.events import Content, Event, ToolCallStart
from appliance.text.reasoning_parsers.base import ReasoningParser
from appliance.text.tool_parsers.base import ToolParser


class OutputParser:
    """Either parser may be missing. ``markers`` are the special tokens they need to see.

    ``has_calls``: there are calls, and an answer that stops after them ends with "tool_calls". ``on_end`` is told
    whether any call was found, where calls were looked for.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None = None,
        tools: ToolParser | None = None,
        on_end: Callable[[bool], None] | None = None,
    ) -> None:
        self._reasoning = None if tools is not None and tools.parses_reasoning else reasoning
        self._tools = tools
        self._on_end = on_end
        self._found_calls = False
        self.has_calls = False
        self.markers = [marker for parser in (self._reasoning, tools) if parser for marker in parser.markers]

    def feed(self, text: str) -> list[Event]:
        """What the next piece of text makes certain."""
        return self._with_tools(self._reasoning.feed(text) if self._reasoning else [Content(text)])

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """What was held back when the text ended; ``is_cut`` where the model had more to say."""
        events = self._with_tools(self._reasoning.finish() if self._reasoning else [])
        if self._tools is None:
            return events
        events += self._noted(self._tools, self._tools.finish(is_cut=is_cut))
        if self._on_end is not None:
            self._on_end(self._found_calls)
        return events

    def _with_tools(self, events: list[Event]) -> list[Event]:
        if self._tools is None:
            return events
        parsed: list[Event] = []
        for event in events:
            parsed += self._noted(self._tools, self._tools.feed(event.text)) if isinstance(event, Content) else [event]
        return parsed

    def _noted(self, tools: ToolParser, events: list[Event]) -> list[Event]:
        self._found_calls = self._found_calls or any(isinstance(event, ToolCallStart) for event in events)
        self.has_calls = self._found_calls and tools.ends_with_calls
        return events
