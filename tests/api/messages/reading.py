"""What holds of every stream of a message, checked while it is folded into the message."""

from __future__ import annotations

import json
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.api.typed_events import read_typed_events

_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking"),
           "tool_use": ("input_json_delta", "partial_json")}  # fmt: skip


def fold_message(text: str) -> dict[str, Any]:
    """The message that a whole, well-formed stream tells."""
    events = [event for event in read_typed_events(text) if event["type"] != "ping"]
    for event in events:
        _EVENT.validate_python(event)
    start, *body, delta, stop = events
    assert (start["type"], delta["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    message: dict[str, Any] = start["message"]
    assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], None, 0)
    message["content"] = fold_blocks(body)
    assert "stop_sequence" in delta["delta"]
    message |= delta["delta"]
    message["usage"] |= delta["usage"]
    Message.model_validate(message)
    return message


def fold_blocks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Blocks one after the other, each between its start and its stop."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in events:
        if event["type"] == "content_block_start":
            assert not is_open
            blocks.append(event["content_block"])
            is_open, pieces = True, ""
        assert event["index"] == len(blocks) - 1
        assert is_open
        block = blocks[-1]
        if event["type"] == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                block["input"] = read_input(pieces)
        elif event["type"] == "content_block_delta" and event["delta"]["type"] == "signature_delta":
            block["signature"] = event["delta"]["signature"]
        elif event["type"] == "content_block_delta":
            kind, name = _DELTAS[block["type"]]
            assert event["delta"]["type"] == kind
            pieces += event["delta"][name]
            if block["type"] != "tool_use":
                block[name] = pieces
    assert not is_open
    return blocks


def read_input(text: str) -> Any:
    """A call that was cut short has no input."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """What two equal answers have in common."""
    Message.model_validate(message)
    blocks = [{k: v for k, v in block.items() if k not in ("id", "signature")} for block in message["content"]]
    return {key: value for key, value in message.items() if key != "id"} | {"content": blocks}
