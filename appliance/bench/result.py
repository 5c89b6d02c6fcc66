"""One request as the client saw it: the time-stamped stream becomes TTFT, ITLs, E2E and token counts.

Rules: TTFT ends with the first chunk that carries output (for completions: the first one with a choice; for chat:
content, reasoning or a tool call, so the chunk with the role does not count). Where there is no such chunk, but a
finish reason, that ends it: a token without text. E2E ends with the last chunk of output or the one with the finish
reason; the usage chunk behind it does not count. The number of output tokens is the server's own, from usage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from appliance.bench.http_client import RawStream


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


@dataclass(slots=True)
class RequestResult:
    """Times in seconds; ``arrived_s``, ``started_s`` are `time.perf_counter`'s. Only arrival and error hold on failure.

    ``e2e_s`` counts from when the request was sent; the wait for a free place under --max-concurrency is before that.
    """

    arrived_s: float
    started_s: float
    error: str | None = None
    ttft_s: float = 0.0
    itls_s: list[float] = field(default_factory=list)
    e2e_s: float = 0.0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    has_usage: bool = False
    finish_reason: str | None = None
    text: str = ""

    @property
    def is_success(self) -> bool:
        """Whether the whole answer arrived."""
        return self.error is None

    @property
    def queue_s(self) -> float:
        """How long the load generator held the request back."""
        return self.started_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for a single token."""
        return (self.e2e_s - self.ttft_s) / (self.num_output_tokens - 1) if self.num_output_tokens > 1 else None


def digest(stream: RawStream, arrived_s: float, num_prompt_tokens: int) -> RequestResult:
    """Read one stream. ``num_prompt_tokens`` is what we believe to have sent, for servers that don't report usage."""
    result = RequestResult(arrived_s, stream.started_s, num_prompt_tokens=num_prompt_tokens)
    reading = _Reading(result)
    try:
        for at_s, data in stream.events:
            if data and data != b"[DONE]":
                reading.take(at_s, _decode_event(data))
    except msgspec.MsgspecError as error:
        reading.error = reading.error or f"an event is no completion chunk: {error}"
    reading.finish(stream)
    return result


def count_output_tokens(results: Iterable[RequestResult], count: Callable[[str], int]) -> None:
    """Count the tokens of answers that came without usage, which until then are taken to be one a chunk."""
    for result in results:
        if result.is_success and not result.has_usage:
            result.num_output_tokens = max(1, count(result.text))


class _Reading:
    """What is known of a stream so far."""

    def __init__(self, result: RequestResult) -> None:
        self._result = result
        self._stamps: list[float] = []
        self._text: list[str] = []
        self._ended_s = 0.0
        self.error: str | None = None

    def take(self, at_s: float, event: _Event) -> None:
        if event.error is not None:
            self.error = self.error or f"error event: {_message(event.error)}"
        if event.usage is not None:
            self._take_usage(event.usage)
        for choice in event.choices or ():
            self._take_choice(at_s, choice)

    def _take_usage(self, usage: _Usage) -> None:
        result = self._result
        result.has_usage = True
        result.num_prompt_tokens = usage.prompt_tokens or result.num_prompt_tokens
        result.num_output_tokens = usage.completion_tokens
        details = usage.prompt_tokens_details
        result.num_cached_tokens = (details.cached_tokens if details else None) or 0

    def _take_choice(self, at_s: float, choice: _Choice) -> None:
        piece, is_output = _output_of(choice)
        if is_output:
            self._stamps.append(at_s)
            self._text.append(piece)
        if is_output or choice.finish_reason:
            self._ended_s = at_s
        self._result.finish_reason = choice.finish_reason or self._result.finish_reason

    def finish(self, stream: RawStream) -> None:
        result = self._result
        if not self._stamps and self._result.finish_reason:
            self._stamps.append(self._ended_s)
        result.error = self._failure(stream)
        result.text = "".join(self._text)
        if result.error is None:
            result.ttft_s = self._stamps[0] - stream.started_s
            result.itls_s = [later - earlier for earlier, later in pairwise(self._stamps)]
            result.e2e_s = self._ended_s - stream.started_s
            result.num_output_tokens = result.num_output_tokens or len(self._stamps)

    def _failure(self, stream: RawStream) -> str | None:
        if stream.status not in {0, 200}:
            return f"HTTP {stream.status}: {_body_message(stream.other)}"
        if self.error or stream.error:
            return self.error or stream.error
        if not self._stamps:
            rest = f": {stream.other.decode(errors='replace')}" if stream.other else ""
            return f"the stream ended without a token{rest}"
        return None


def _output_of(choice: _Choice) -> tuple[str, bool]:
    """The text of a chunk, and whether it counts as output."""
    if choice.delta is None:
        # A last chunk that only brings the finish reason is no token.
        return choice.text or "", bool(choice.text) or (choice.text is not None and not choice.finish_reason)
    delta = choice.delta
    piece = delta.content or delta.reasoning_content or delta.reasoning or ""
    return piece, bool(piece or delta.tool_calls)


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _body_message(body: bytes) -> str:
    try:
        return _message(msgspec.json.decode(body)["error"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return body.decode(errors="replace") or "no reason given"
