"""Keeps random requests short: what is valid in them is cut down, what is invalid stays as it is."""

from __future__ import annotations

from typing import Any

MAX_TOKENS, MAX_N, MAX_PROMPTS = 4, 4, 4
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_ROOM = 1_000_000  # beyond this a number is refused, so it may stay


def limit(body: Any) -> Any:
    """The same body, but with few tokens, choices and prompts. Works in place on objects."""
    if not isinstance(body, dict):
        return body
    for name in _LIMITS:
        if _is_large(body.get(name), MAX_TOKENS):
            body[name] = MAX_TOKENS
    # A null counts as missing, and the default may be all the context.
    if all(body.get(name) is None for name in _LIMITS):
        body.update(dict.fromkeys(("max_tokens", "max_output_tokens"), MAX_TOKENS))
    elif body.get("max_output_tokens") is None:
        body["max_output_tokens"] = MAX_TOKENS
    elif body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
        body["max_tokens"] = MAX_TOKENS
    if _is_large(body.get("n"), MAX_N):
        body["n"] = MAX_N
    if isinstance(body.get("prompt"), list) and len(body["prompt"]) > MAX_PROMPTS:
        body["prompt"] = body["prompt"][:MAX_PROMPTS]
    return body


def _is_large(value: Any, limit: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and limit < value < _ROOM
