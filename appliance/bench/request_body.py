"""The bodies that are sent: one for each backend, which is a protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Backend:
    """Where requests go, and whether prompts are messages."""

    path: str
    is_chat: bool


BACKENDS = {
    "openai": Backend("/v1/completions", is_chat=False),
    "openai-chat": Backend("/v1/chat/completions", is_chat=True),
    "vllm": Backend("/v1/completions", is_chat=False),
}


@dataclass(frozen=True)
class BodyOptions:
    """What every body of a load has in common. ``extra`` is merged in last; a null in it takes a field out."""

    model: str
    is_chat: bool
    sampling: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


def make_body(options: BodyOptions, prompt: str | list[dict[str, str]], max_tokens: int) -> bytes:
    """A streamed request for at most so many tokens; the prompt is text, or the messages of a chat."""
    body: dict[str, Any] = {
        "model": options.model,
        **_prompt(options.is_chat, prompt),
        # The older name of the chat's field, but the one that every server knows.
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **options.sampling,
    }
    if options.ignore_eos:
        body["ignore_eos"] = True
    body |= options.extra
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


def _prompt(is_chat: bool, prompt: str | list[dict[str, str]]) -> dict[str, Any]:
    if not is_chat:
        return {"prompt": prompt}
    return {"messages": prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]}
