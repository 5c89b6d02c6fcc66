"""Collects a parser's events: numbers the calls, joins pieces, and drops white space that only stands around calls."""

from __future__ import annotations

from collections.abc import Callable

from appliance.text.events import Content, Event, Reasoning, ToolCallArguments, ToolCallStart


class CallWriter:
    """``make_id`` gives a call its id from name and index."""

    def __init__(self, make_id: Callable[[str, int], str]) -> None:
        self._make_id = make_id
        self._events: list[Event] = []
        self._blank = ""  # white space that is content only if text follows
        self._is_in_text = False
        self.num_calls = 0

    def content(self, text: str) -> None:
        """Text outside of calls."""
        if not self._is_in_text:
            self._blank += text
            if not self._blank.strip():
                return
            text, self._blank, self._is_in_text = self._blank, "", True
        self._join(Content(text))

    def reasoning(self, text: str) -> None:
        """Text of the thinking."""
        self._join(Reasoning(text))

    def start(self, name: str, id: str | None = None) -> None:
        """A call begins."""
        self._blank, self._is_in_text = "", False
        self._events.append(ToolCallStart(self.num_calls, id or self._make_id(name, self.num_calls), name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """More of the latest call's arguments."""
        self._join(ToolCallArguments(self.num_calls - 1, text))

    def finish(self) -> None:
        """The text has ended: white space is all there was, unless there were calls."""
        if not self.num_calls and self._blank:
            self._join(Content(self._blank))
            self._blank = ""

    def drain(self) -> list[Event]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def _join(self, event: Content | Reasoning | ToolCallArguments) -> None:
        if not event.text:
            return
        last = self._events[-1] if self._events else None
        if type(last) is type(event):
            last.text += event.text
        else:
            self._events.append(event)
