"""A choice's events as output items, and as the typed events that tell of them. Streamed and collected answers are
both made here; a collected one just drops the events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from appliance.api.logprobs import TokenPrinter, chat_logprobs
from appliance.api.request_ids import make_object_id
from appliance.text.events import Content, Event, Finish, Reasoning, ToolCallArguments, ToolCallStart
from engine.messages import TokenLogprobs

TypedEvent = dict[str, Any]
_TEXT_EVENT = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


@dataclass
class _OpenItem:
    """The item that is being said, and the pieces of its text or arguments."""

    index: int
    item: dict[str, Any]
    pieces: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    pending: list[dict[str, Any]] = field(default_factory=list)  # logprobs of tokens whose text is not out yet

    @property
    def kind(self) -> str:
        """The item's type."""
        return str(self.item["type"])

    def event(self, kind: str, **fields: Any) -> TypedEvent:
        """An event about this item."""
        return {"type": kind, "item_id": self.item["id"], "output_index": self.index, **fields}

    def part(self, text: str) -> dict[str, Any]:
        """The one content part."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(self.logprobs)}


class OutputItems:
    """``items`` are the finished ones. ``printer`` None: no logprobs."""

    def __init__(self, printer: TokenPrinter | None, *, include_reasoning: bool) -> None:
        self.items: list[dict[str, Any]] = []
        self.num_reasoning_tokens = 0
        self._printer = printer
        self._include_reasoning = include_reasoning
        self._open: _OpenItem | None = None

    def add(self, event: Event) -> list[TypedEvent]:
        """What an event of the generation tells; `Finish` closes what is open."""
        match event:
            case Content():
                return self._add_content(event)
            case Reasoning():
                return self._add_reasoning(event)
            case ToolCallStart():
                return self._start_call(event)
            case ToolCallArguments(text=text):
                return self._extend("response.function_call_arguments.delta", text)
            case Finish():
                return self.finish(is_cut=event.finish_reason in ("length", "abort"))

    def finish(self, *, is_cut: bool) -> list[TypedEvent]:
        """Close what is open; an answer without anything is one empty message."""
        events = [] if self._open or self.items else self._start_text("message")
        return events + self._close("incomplete" if is_cut else "completed")

    def _add_content(self, event: Content) -> list[TypedEvent]:
        logprobs = self._print_logprobs(event.logprobs)
        if not event.text:
            if self._open is not None and self._open.kind == "message":
                self._open.pending += logprobs
            return []
        events = self._start_text("message")
        assert self._open is not None
        logprobs, self._open.pending = self._open.pending + logprobs, []
        self._open.logprobs += logprobs
        return events + self._extend("response.output_text.delta", event.text, content_index=0, logprobs=logprobs)

    def _add_reasoning(self, event: Reasoning) -> list[TypedEvent]:
        self.num_reasoning_tokens += len(event.token_ids)
        if not event.text or not self._include_reasoning:
            return []
        events = self._start_text("reasoning")
        return events + self._extend("response.reasoning_text.delta", event.text, content_index=0)

    def _print_logprobs(self, tokens: list[TokenLogprobs] | None) -> list[dict[str, Any]]:
        if self._printer is None or not tokens:
            return []
        printed: list[dict[str, Any]] = chat_logprobs(self._printer, tokens)["content"]
        return printed

    def _extend(self, name: str, text: str, **fields: Any) -> list[TypedEvent]:
        assert self._open is not None
        self._open.pieces.append(text)
        return [self._open.event(name, delta=text, **fields)]

    def _start_text(self, kind: str) -> list[TypedEvent]:
        if self._open is not None and self._open.kind == kind:
            return []
        item: dict[str, Any] = {"type": kind, "status": "in_progress", "content": []}
        if kind == "message":
            item |= {"id": make_object_id("msg", "_"), "role": "assistant"}
        else:
            item |= {"id": make_object_id("rs", "_"), "summary": []}
        events = self._start(item)
        assert self._open is not None
        return [*events, self._open.event("response.content_part.added", content_index=0, part=self._open.part(""))]

    def _start_call(self, event: ToolCallStart) -> list[TypedEvent]:
        item = {"type": "function_call", "id": make_object_id("fc", "_"), "status": "in_progress"}
        return self._start(item | {"call_id": event.id, "name": event.name, "arguments": ""})

    def _start(self, item: dict[str, Any]) -> list[TypedEvent]:
        events = self._close("completed")
        self._open = _OpenItem(len(self.items), item)
        # Events are encoded at once or never: the item itself must not change under them.
        return [*events, {"type": "response.output_item.added", "output_index": self._open.index, "item": dict(item)}]

    def _close(self, status: str) -> list[TypedEvent]:
        if self._open is None:
            return []
        closing, self._open = self._open, None
        events = _close_call(closing) if closing.kind == "function_call" else _close_text(closing)
        closing.item["status"] = status
        self.items.append(closing.item)
        return [*events, {"type": "response.output_item.done", "output_index": closing.index, "item": closing.item}]


def _close_text(closing: _OpenItem) -> list[TypedEvent]:
    closing.logprobs = closing.logprobs + closing.pending
    text = "".join(closing.pieces)
    part = closing.part(text)
    closing.item["content"] = [part]
    more = {"logprobs": closing.logprobs} if closing.kind == "message" else {}
    return [
        closing.event(_TEXT_EVENT[closing.kind] + ".done", content_index=0, text=text, **more),
        closing.event("response.content_part.done", content_index=0, part=part),
    ]


def _close_call(closing: _OpenItem) -> list[TypedEvent]:
    closing.item["arguments"] = arguments = "".join(closing.pieces)
    name = closing.item["name"]
    return [closing.event("response.function_call_arguments.done", name=name, arguments=arguments)]
