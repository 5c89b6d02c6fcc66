"""What an answer says, without what differs from one asking to the next: ids, times, how it was cut into chunks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

_VOLATILE = frozenset(
    (
        *("id", "created", "created_at", "completed_at", "item_id", "call_id", "request_id", "sequence_number"),
        *("system_fingerprint", "prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens"),
        *("cache_creation_input_tokens", "input_tokens"),  # Anthropic's input_tokens are those that were not cached
    )
)
_PIECES = frozenset(("content", "text", "arguments", "partial_json", "delta", "thinking", "reasoning"))
_LAST_EVENTS = ("data: [DONE]", "event: message_stop")
_ENDS = ("response.completed", "response.incomplete")
# What a failed response says where other streams say "service_unavailable"; its codes are OpenAI's, which know no such.
_IS_AWAY = re.compile(r"did not come back|is not ready|was aborted|is shutting down")


class BrokenAnswerError(Exception):
    """What came is no whole answer; `error` is what the box said of it, if anything."""

    def __init__(self, problem: str, error: dict[str, Any] | None = None) -> None:
        super().__init__(problem)
        self.error = error or {}


def read_collected(text: str) -> Any:
    """The lasting part of a JSON answer. Raises BrokenAnswerError."""
    try:
        return _lasting(json.loads(text))
    except ValueError:
        raise BrokenAnswerError(f"no JSON: {text[:200]!r}") from None


def read_stream(text: str) -> dict[str, Any]:
    """The lasting part of a stream's events, put together. Raises BrokenAnswerError where its end is missing."""
    lines = (line[6:] for line in text.splitlines() if line.startswith("data: {"))
    events = [event for event in map(json.loads, lines) if event.get("type") != "ping"]
    for event in events:
        if event.get("error"):
            raise BrokenAnswerError(f"an error event: {event}", event["error"])
        if event.get("type") == "response.failed":
            error = event["response"]["error"]
            kind = "service_unavailable" if _IS_AWAY.search(error["message"]) else error["code"]
            raise BrokenAnswerError(f"a failed response: {error}", {"type": kind})
    is_whole = any(mark in text for mark in _LAST_EVENTS) or any(event.get("type") in _ENDS for event in events)
    if not is_whole:
        raise BrokenAnswerError(f"the stream has no end: {text[-200:]!r}")
    return fold(map(_lasting, events))


def fold(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Pieces of the same place joined: of one choice, one block, one item."""
    folded: dict[str, Any] = {}
    for event in events:
        places = [event.get(name) for name in ("type", "index", "output_index", "content_index")]
        _merge(folded.setdefault("/".join(map(str, places)), {}), event)
    return folded


def _lasting(value: Any) -> Any:
    if isinstance(value, list):
        return [_lasting(item) for item in value]
    if isinstance(value, dict):
        return {name: _lasting(item) for name, item in value.items() if name not in _VOLATILE}
    return value


def _merge(into: dict[str, Any], event: dict[str, Any]) -> None:
    for name, value in event.items():
        known = into.get(name)
        if value is None and name in into:
            continue
        if isinstance(value, dict) and isinstance(known, dict):
            _merge(known, value)
        elif isinstance(value, list):
            into[name] = _merged_list(known or [], value)
        elif isinstance(value, str) and isinstance(known, str) and name in _PIECES:
            into[name] = known + value
        else:
            into[name] = value if not isinstance(value, dict) else _merged_dict(value)


def _merged_dict(value: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    _merge(made, value)
    return made


def _merged_list(known: list[Any], value: list[Any]) -> list[Any]:
    """Items that say which one they are are joined with their earlier pieces; others follow them."""
    merged = list(known)
    for item in value:
        same = [old for old in merged if isinstance(item, dict) and "index" in item and old["index"] == item["index"]]
        if same:
            _merge(same[0], item)
        else:
            merged.append(_merged_dict(item) if isinstance(item, dict) else item)
    return merged
