"""Collects a reasoning parser's events: joins pieces and trims the newlines that stand next to the markers."""

from __future__ import annotations

from appliance.text.events import Content, Event, Reasoning


class ThoughtWriter:
    """Content is trimmed only right after a thought."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._newlines = ""  # seen at the end of the thought so far
        self._is_thought_start = True
        self._is_after_thought = False

    def reasoning(self, text: str) -> None:
        """Text of the thinking."""
        text = text.lstrip("\n") if self._is_thought_start else self._newlines + text
        stripped = text.rstrip("\n")
        self._newlines = text[len(stripped) :] if stripped or not self._is_thought_start else ""
        if stripped:
            self._is_thought_start = False
            self._join(Reasoning(stripped))

    def end_thought(self) -> None:
        """The thinking is over."""
        self._newlines = ""
        self._is_thought_start = self._is_after_thought = True

    def content(self, text: str) -> None:
        """Text of the rest."""
        if self._is_after_thought:
            text = text.lstrip("\n")
        if text:
            self._is_after_thought = False
            self._join(Content(text))

    def drain(self) -> list[Event]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def _join(self, event: Content | Reasoning) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, Content | Reasoning) and type(last) is type(event):
            last.text += event.text
        else:
            self._events.append(event)
