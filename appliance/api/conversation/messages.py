"""Checks a client's messages before they reach a chat template, so that a fault is told with its field's path.

Shaping them for the template (joining parts, parsing arguments, roles it does not know) is `appliance.text`'s job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from appliance.api.fields import refuse

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_STRINGS = ("name", "tool_call_id", "reasoning", "reasoning_content", "thinking")
_KEPT = ("role", "content", "tool_calls", *_STRINGS)
_MAY_BE_EMPTY = ("assistant", "tool", "function")


def read_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """The messages with the fields that templates know. Raises InvalidRequestError with the path of what is wrong."""
    return [_read_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _read_message(message: Any, path: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise refuse(path, "must be an object with role and content")
    role = message.get("role")
    if role is None:
        raise refuse(f"{path}.role", "is required")
    if role not in ROLES:
        raise refuse(f"{path}.role", f"must be one of {', '.join(ROLES)}")
    _check_content(message.get("content"), role, f"{path}.content")
    for name in _STRINGS:
        if not isinstance(message.get(name), str | None):
            raise refuse(f"{path}.{name}", "must be a string")
    _check_tool_calls(message.get("tool_calls"), f"{path}.tool_calls")
    kept = {name: message[name] for name in _KEPT if message.get(name) is not None}
    if "content" not in kept and isinstance(message.get("refusal"), str):
        kept["content"] = message["refusal"]
    return kept | {"role": "tool"} if role == "function" else kept


def _check_content(content: Any, role: str, path: str) -> None:
    if isinstance(content, str) or (content is None and role in _MAY_BE_EMPTY):
        return
    if not isinstance(content, list):
        raise refuse(path, "must be a string or a list of parts")
    if not content:
        raise refuse(path, "must have at least one part")
    for index, part in enumerate(content):
        _check_part(part, f"{path}[{index}]")


def _check_part(part: Any, path: str) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, dict):
        raise refuse(path, "must be an object with a type")
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise refuse(f"{path}.type", "must be text: this model reads nothing else")
    if not isinstance(part.get(TEXT_PARTS[kind]), str):
        raise refuse(f"{path}.{TEXT_PARTS[kind]}", "must be a string")


def _check_tool_calls(calls: Any, path: str) -> None:
    if not isinstance(calls, list | None):
        raise refuse(path, "must be a list")
    for index, call in enumerate(calls or []):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type", "function") != "function":
            raise refuse(f"{path}[{index}]", "must be an object of type function")
        if not isinstance(function.get("name"), str):
            raise refuse(f"{path}[{index}].function.name", "must be a string")
