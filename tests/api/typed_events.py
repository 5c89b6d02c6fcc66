"""Reads streams of typed events: each named as its type says, comments left out, no [DONE]."""

from __future__ import annotations

import json
from typing import Any


def read_typed_events(text: str) -> list[dict[str, Any]]:
    """The JSON of every event."""
    assert text.endswith("\n\n")
    assert "[DONE]" not in text
    events = []
    for block in text.split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events
