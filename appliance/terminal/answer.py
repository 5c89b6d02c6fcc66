"""One answer as it streams in: shown piece by piece, with its figures at the end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from appliance.terminal.box_server import BoxServer
from appliance.terminal.screen import Screen

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"


@dataclass
class Answer:
    """Text and figures so far; stays valid when the stream is cut off."""

    text: str = ""
    num_tokens: int = 0
    finish_reason: str | None = None
    started_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None
    last_s: float | None = None

    def describe(self) -> str:
        """The figures in a line; nothing where no token came."""
        if self.first_s is None or self.last_s is None:
            return ""
        words = [f"{self.num_tokens} token{'' if self.num_tokens == 1 else 's'}"]
        if self.num_tokens > 1 and self.last_s > self.first_s:
            words.append(f"{(self.num_tokens - 1) / (self.last_s - self.first_s):.1f} tokens/s")
        words.append(f"first token after {self.first_s - self.started_s:.2f} s")
        if self.finish_reason == "length":
            words.append("cut at the limit of tokens")
        return " · ".join(words)


class AnswerReader:
    """Reads streams of chat and completions and shows them."""

    def __init__(self, server: BoxServer, screen: Screen) -> None:
        self._server = server
        self._screen = screen
        self._is_thinking = False

    async def read(self, path: str, body: dict[str, Any], answer: Answer) -> None:
        """Fill `answer`. Raises HttpError."""
        streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
        try:
            async for event in self._server.stream(path, streamed):
                self._take(event, answer)
        finally:
            self._end_thought()

    def _take(self, event: dict[str, Any], answer: Answer) -> None:
        answer.num_tokens = (event.get("usage") or {}).get("completion_tokens", answer.num_tokens)
        for choice in event.get("choices") or ():
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
            delta = choice.get("delta") or {}
            self._show_thought(delta.get("reasoning") or delta.get("reasoning_content") or "", answer)
            self._show_text(delta.get("content") or choice.get("text") or "", answer)

    def _show_text(self, text: str, answer: Answer) -> None:
        if text:
            self._end_thought()
            self._count(answer)
            answer.text += text
            self._screen.write(text)

    def _show_thought(self, text: str, answer: Answer) -> None:
        """Reasoning is for eyes: into a file goes the answer alone."""
        if text:
            self._count(answer)
        if text and self._screen.is_terminal:
            self._is_thinking = True
            self._screen.write(text, "dim")

    def _end_thought(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            self._screen.line("\n")

    @staticmethod
    def _count(answer: Answer) -> None:
        answer.last_s = time.monotonic()
        answer.first_s = answer.first_s or answer.last_s
        answer.num_tokens += 1  # until the usage comes
