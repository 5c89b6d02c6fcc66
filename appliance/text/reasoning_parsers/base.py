"""What every parser of a model's thinking offers. One parser a choice: it keeps state.

It turns text into `Reasoning` and `Content`; the content may still hold tool calls, which are the tool parser's job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.text.events import Event


@dataclass(frozen=True, slots=True)
class Thinking:
    """The tags around thinking. ``is_open``: the answer begins inside; otherwise the model may open it."""

    start: str
    end: str
    is_open: bool


class ReasoningParser(ABC):
    """Splits one choice's text into thinking and the rest.

    ``prompt`` is the end of the rendered prompt (the template may have opened or closed the thinking already),
    ``template_kwargs`` the request's chat_template_kwargs.
    """

    markers: Sequence[str] = ()  # special tokens whose text must not be skipped while this parser listens

    def __init__(self, prompt: str = "", template_kwargs: Mapping[str, Any] | None = None) -> None:
        self.prompt = prompt
        self.template_kwargs = template_kwargs or {}

    @property
    def thinking(self) -> Thinking | None:
        """What a grammar for the answer must wait for; None where there is no thinking or it has no tags."""
        return None

    @abstractmethod
    def feed(self, text: str) -> list[Event]:
        """What the next piece of text makes certain: `Reasoning` and `Content` only."""

    @abstractmethod
    def finish(self) -> list[Event]:
        """What was held back when the text ended. Nothing may be fed afterwards."""
