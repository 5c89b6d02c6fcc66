"""The one event stream that every protocol prints: what a generation says, in order.

A choice's events are any number of `Content`, `Reasoning`, `ToolCallStart`, `ToolCallArguments`, then exactly one
`Finish`. A collected answer is the same stream, folded.
"""

from __future__ import annotations

import msgspec

from engine.messages import TokenLogprobs


class Content(msgspec.Struct):
    """Answer text. ``token_ids``/``logprobs`` are the tokens produced since the last event (text may lag behind
    them: characters split over tokens and possible stop strings are held back); the text may be empty then."""

    text: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None


class Reasoning(msgspec.Struct):
    """Text of the model's thinking."""

    text: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None


class ToolCallStart(msgspec.Struct):
    """A tool call begins: its index among the choice's calls, its id and the function's whole name, once."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct):
    """A piece of the arguments' JSON text; the pieces concatenate to the whole."""

    index: int
    text: str


class Finish(msgspec.Struct):
    """The end of a choice: finish_reason stop, length, tool_calls, abort; stop_reason the stop string or token id."""

    finish_reason: str
    stop_reason: str | int | None = None


Event = Content | Reasoning | ToolCallStart | ToolCallArguments | Finish
