"""What holds of every stream of a response, checked while it is read."""

from __future__ import annotations

from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.api.typed_events import read_typed_events

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_ENDS = {"completed", "incomplete", "failed"}
_TEXTS = {"response.output_text": "text", "response.reasoning_text": "text",
          "response.function_call_arguments": "arguments"}  # fmt: skip


def read_response_events(text: str) -> list[dict[str, Any]]:
    """The events of a whole stream, which is well formed."""
    events = read_typed_events(text)
    for event in events:
        _EVENT.validate_python(event)
    check_order(events)
    return events


def check_order(events: list[dict[str, Any]]) -> None:
    """Gapless numbers, created and in_progress first, one end last, brackets pair, pieces make the whole."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last["type"] == f"response.{last['response']['status']}"
    assert last["response"]["status"] in _ENDS
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    output = check_items(events[2:-1])
    assert output == last["response"]["output"]


def check_items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items one after the other, each whole; returns them as their done events have them."""
    stack: list[tuple[str, str]] = []
    pieces: list[str] = []
    items: list[dict[str, Any]] = []
    for event in events:
        kind, item_id = event["type"], event.get("item_id") or event["item"]["id"]
        assert event["output_index"] == len(items)
        if kind.endswith(".added"):
            stack.append((kind.removesuffix(".added"), item_id))
            pieces = []
        elif kind.endswith(".delta"):
            assert stack[-1][1] == item_id
            pieces.append(event["delta"])
        elif kind.removesuffix(".done") in _TEXTS:
            assert event[_TEXTS[kind.removesuffix(".done")]] == "".join(pieces)
        else:
            assert stack.pop() == (kind.removesuffix(".done"), item_id)
            if kind == "response.output_item.done":
                items.append(event["item"])
    assert stack == []
    assert all(_said(item) for item in items[:-1])
    return items


def _said(item: dict[str, Any]) -> bool:
    """Only the last item may have been cut short."""
    return bool(item["status"] == "completed")


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """What two equal answers have in common."""
    Response.model_validate(response)
    own = ("id", "created_at", "completed_at")
    kept = {key: value for key, value in response.items() if key not in own}
    kept["output"] = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
    return kept
