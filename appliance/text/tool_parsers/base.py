"""What every tool-call format's parser offers. One parser a choice: it keeps state.

A parser consumes deltas; a collected answer is the same parser fed once. It never raises: what it cannot parse comes
back as `Content`. Which text belongs to the thinking is the reasoning parser's job, before this one.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from appliance.text.events import Event


@dataclass(frozen=True, slots=True)
class CallFrame:
    """A call is ``begin``, the arguments' JSON, ``end``; text that holds ``trigger`` must go on as ``begin`` does."""

    trigger: str
    begin: str
    end: str


class ToolParser(ABC):
    """Splits one choice's text into content and tool calls.

    ``tools`` are the request's tools, whose parameter schemas some formats need to type their values.
    """

    markers: Sequence[str] = ()  # special tokens whose text must not be skipped while this parser listens
    parses_reasoning: bool = False  # does the reasoning parser's job as well, which must then be left out
    ends_with_calls: bool = True  # calls make the finish_reason "tool_calls"

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        self.tools = tools

    @abstractmethod
    def feed(self, text: str) -> list[Event]:
        """What the next piece of text makes certain."""

    @abstractmethod
    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """What was held back when the text ended. Nothing may be fed afterwards.

        ``is_cut``: the model had more to say (max_tokens, a stop string), so a call that is open stays open; otherwise
        what only lacks its closing tags is complete.
        """

    @classmethod
    def frame(cls, name: str) -> CallFrame | None:
        """How a call of the function is written around its arguments; None where a grammar cannot say it."""
        return None

    def make_call_id(self, name: str, index: int) -> str:
        """A new id for a call; families with ids of their own override this."""
        return f"chatcmpl-tool-{secrets.token_hex(16)}"
