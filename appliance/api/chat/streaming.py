"""Prints a chat's events as chat.completion.chunk objects, in the order that clients expect.

Roles first (once the engine has answered), then text, each finish reason with the choice's last text, then usage.
"""

from __future__ import annotations

from typing import Any

from appliance.api.chat.serving import print_prompt_fields
from appliance.api.choice_stream import Batch
from appliance.api.conversation.job import ChatJob
from appliance.api.logprobs import chat_logprobs
from appliance.api.streaming import ChunkPrinter, TextChunks, sse
from appliance.api.usage import make_usage
from appliance.text.events import Content, Event, Finish, Reasoning, ToolCallArguments, ToolCallStart


class ChatPrinter(ChunkPrinter):
    """Prints one request."""

    def __init__(self, job: ChatJob, *, include_usage: bool, continuous_usage: bool) -> None:
        self._job = job
        self._include_usage = include_usage
        self._continuous_usage = include_usage and continuous_usage
        self._num_tokens = [0] * job.request.n
        self._needs_empty = job.request.logprobs or job.request.return_token_ids
        self._opened = False
        self._head = {
            "id": job.id,
            "object": "chat.completion.chunk",
            "created": job.created,
            "model": job.model.name,
        }
        if not include_usage:
            self._head["system_fingerprint"] = job.model.system_fingerprint
        self._is_plain = not (self._needs_empty or self._continuous_usage)  # all chunks of text differ in it only
        self._text_chunks = TextChunks(self._text_value, "content")

    def print(self, batch: Batch) -> list[bytes]:
        """Each event's chunk; a finish joins the chunk of the text right before it."""
        if self._is_plain and self._opened and (printed_text := self._text_chunks.print(batch)):
            return printed_text
        chunks = [] if self._opened else self._open()
        last: dict[int, dict[str, Any]] = {}
        printed: list[tuple[int, dict[str, Any]]] = []
        for index, event in batch:
            if isinstance(event, Finish) and index in last:
                _finish(last[index], event)
                continue
            choice = self._print_event(index, event)
            if choice is not None:
                last[index] = choice
                printed.append((self._num_tokens[index], choice))
        return chunks + [self._chunk(choice, count) for count, choice in printed]

    def _text_value(self, index: int) -> dict[str, Any]:
        return {**self._head, "choices": [_choice(index, {"content": ""})]}

    async def print_end(self) -> list[bytes]:
        """The usage of all choices."""
        if not self._include_usage:
            return []
        fingerprint = self._job.model.system_fingerprint
        return [sse(self._head | {"choices": [], "usage": self._job.usage(), "system_fingerprint": fingerprint})]

    def _open(self) -> list[bytes]:
        self._opened = True
        extra = print_prompt_fields(self._job)
        chunks = [
            self._chunk(_choice(index, {"role": self._job.role, "content": ""}), 0, extra)
            for index in range(self._job.request.n)
        ]
        if self._job.echoed:
            delta = {"content": self._job.echoed}
            chunks += [self._chunk(_choice(index, delta), 0) for index in range(self._job.request.n)]
        return chunks

    def _print_event(self, index: int, event: Event) -> dict[str, Any] | None:
        if isinstance(event, Finish):
            choice = _choice(index, {})
            _finish(choice, event)
            return choice
        if isinstance(event, (ToolCallStart, ToolCallArguments)):
            return _choice(index, {"tool_calls": [_print_tool_call(event)]})
        self._job.count(event)
        self._num_tokens[index] += len(event.token_ids)
        if not event.text and not (self._needs_empty and event.token_ids):
            return None
        return self._print_text(index, event)

    def _print_text(self, index: int, event: Content | Reasoning) -> dict[str, Any] | None:
        request = self._job.request
        if isinstance(event, Reasoning) and not request.include_reasoning:
            return None
        names = ("content",) if isinstance(event, Content) else self._job.reasoning_names
        choice = _choice(index, dict.fromkeys(names, event.text))
        if request.logprobs and event.logprobs is not None:
            choice["logprobs"] = chat_logprobs(self._job.printer, event.logprobs)
        if request.return_token_ids:
            choice["token_ids"] = event.token_ids
        return choice

    def _chunk(self, choice: dict[str, Any], num_tokens: int, extra: dict[str, Any] | None = None) -> bytes:
        chunk: dict[str, Any] = {**self._head, "choices": [choice]}
        if extra:
            chunk |= extra
        if self._continuous_usage:
            chunk["usage"] = make_usage(len(self._job.prompt_token_ids), num_tokens, None)
        return sse(chunk)


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _finish(choice: dict[str, Any], event: Finish) -> None:
    choice["finish_reason"] = event.finish_reason
    choice["stop_reason"] = event.stop_reason


def _print_tool_call(event: ToolCallStart | ToolCallArguments) -> dict[str, Any]:
    if isinstance(event, ToolCallStart):
        function = {"name": event.name, "arguments": ""}
        return {"index": event.index, "id": event.id, "type": "function", "function": function}
    return {"index": event.index, "function": {"arguments": event.text}}
