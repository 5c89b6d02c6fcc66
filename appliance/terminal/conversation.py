"""A conversation with a model: its turns, system prompt and sampling, and the request that they make."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Message = dict[str, str]


@dataclass
class Conversation:
    """``turns`` are the user's and the assistant's messages, in turn."""

    model: str
    system: str = ""
    sampling: dict[str, Any] = field(default_factory=dict)
    turns: list[Message] = field(default_factory=list)

    def say(self, text: str) -> None:
        """The user's next message; it joins one that got no answer, as many templates insist on turns."""
        if self.turns and self.turns[-1]["role"] == "user":
            text = f"{self.turns.pop()['content']}\n\n{text}"
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """The model's; nothing said is no turn."""
        if text:
            self.turns.append({"role": "assistant", "content": text})

    def take_back(self) -> str | None:
        """Forget the last question and its answer; returns the question."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        return None

    def body(self) -> dict[str, Any]:
        """The chat request."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"model": self.model, "messages": [*system, *self.turns], **self.sampling}

    def save(self, path: Path) -> None:
        """As JSON, which is the body of a request. Raises OSError."""
        path.write_text(json.dumps(self.body(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
