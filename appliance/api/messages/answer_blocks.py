"""A choice's events as content blocks, and as the typed events that tell of them. Streamed and collected answers are
both made here; a collected one just drops the events."""

from __future__ import annotations

import json
import secrets
from typing import Any

from appliance.text.events import Content, Event, Finish, Reasoning, ToolCallArguments, ToolCallStart

TypedEvent = dict[str, Any]
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


class AnswerBlocks:
    """``blocks`` are the finished ones."""

    def __init__(self, *, shows_thinking: bool) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._shows_thinking = shows_thinking
        self._open: dict[str, Any] | None = None
        self._pieces: list[str] = []

    @property
    def has_calls(self) -> bool:
        """Whether the answer uses a tool."""
        return any(block["type"] == "tool_use" for block in self.blocks)

    def add(self, event: Event) -> list[TypedEvent]:
        """What an event of the generation tells; `Finish` closes what is open."""
        match event:
            case Content(text=text):
                return self._say("text", text)
            case Reasoning(text=text):
                return self._say("thinking", text) if self._shows_thinking else []
            case ToolCallStart(id=id, name=name):
                return self._start({"type": "tool_use", "id": id, "name": name, "input": {}})
            case ToolCallArguments(text=text):
                return self._extend("input_json_delta", "partial_json", text)
            case Finish():
                return self.finish()

    def finish(self) -> list[TypedEvent]:
        """Close what is open; an answer without anything is one empty text."""
        events = [] if self._open or self.blocks else self._start({"type": "text", "text": ""})
        return events + self._close()

    def _say(self, kind: str, text: str) -> list[TypedEvent]:
        if not text:
            return []
        delta, name = _DELTAS[kind]
        block = {"type": kind, name: ""} | ({"signature": ""} if kind == "thinking" else {})
        is_open = self._open is not None and self._open["type"] == kind
        return ([] if is_open else self._start(block)) + self._extend(delta, name, text)

    def _extend(self, delta: str, name: str, text: str) -> list[TypedEvent]:
        self._pieces.append(text)
        return [self._delta({"type": delta, name: text})]

    def _delta(self, delta: dict[str, str]) -> TypedEvent:
        return {"type": "content_block_delta", "index": len(self.blocks), "delta": delta}

    def _start(self, block: dict[str, Any]) -> list[TypedEvent]:
        events = self._close()
        self._open, self._pieces = block, []
        return [*events, {"type": "content_block_start", "index": len(self.blocks), "content_block": dict(block)}]

    def _close(self) -> list[TypedEvent]:
        if self._open is None:
            return []
        block, text = self._open, "".join(self._pieces)
        events = []
        if block["type"] == "tool_use":
            block["input"] = _parse_arguments(text)
        else:
            block[_DELTAS[block["type"]][1]] = text
        if block["type"] == "thinking":
            # Clients send it back with the block. Nothing is proven by it here.
            block["signature"] = secrets.token_hex(32)
            events.append(self._delta({"type": "signature_delta", "signature": block["signature"]}))
        events.append({"type": "content_block_stop", "index": len(self.blocks)})
        self.blocks.append(block)
        self._open = None
        return events


def _parse_arguments(text: str) -> dict[str, Any]:
    """The arguments' object; {} where the call was cut before it was whole."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
