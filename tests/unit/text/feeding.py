"""Feeds a parser the same text in many cuts and folds its events to what a client collects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from appliance.text.events import Content, Event, Reasoning, ToolCallArguments, ToolCallStart

Folded = tuple[str, str, list[tuple[str, str]]]  # reasoning, content, (name, arguments) of each call


def fold(events: Iterable[Event]) -> Folded:
    """Checks the order of events on the way: start before arguments, indices ascending, ids unique."""
    reasoning = content = ""
    calls: list[list[str]] = []
    ids: set[str] = set()
    for event in events:
        if isinstance(event, Content):
            assert event.text
            content += event.text
        elif isinstance(event, Reasoning):
            assert event.text
            reasoning += event.text
        elif isinstance(event, ToolCallStart):
            assert event.index == len(calls)
            assert event.id not in ids
            assert event.id
            ids.add(event.id)
            calls.append([event.name, ""])
        elif isinstance(event, ToolCallArguments):
            assert event.index == len(calls) - 1
            calls[-1][1] += event.text
    return reasoning, content, [(name, arguments) for name, arguments in calls]


def run(parser: Any, pieces: Iterable[str], **options: bool) -> Folded:
    events = [event for piece in pieces for event in parser.feed(piece)]
    return fold([*events, *parser.finish(**options)])


def run_every_way(make: Callable[[], Any], text: str) -> Folded:
    """Whole, a character at a time, in threes and sevens, and cut in two at every place: always the same."""
    whole = run(make(), [text])
    for size in (1, 3, 7):
        assert run(make(), [text[i : i + size] for i in range(0, len(text), size)]) == whole
    for cut in range(1, len(text)):
        assert run(make(), [text[:cut], text[cut:]]) == whole, f"cut at {text[:cut][-20:]!r}"
    return whole
