"""Reads ``system`` and ``messages``: content blocks, checked with the path of every fault, as messages of a chat.

One message here may become several there: tool results are messages of their own in a chat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.api.fields import refuse

Message = dict[str, Any]

ROLES = ("user", "assistant", "system")
# A client's billing note that changes with every request; it would keep the prefix cache from ever hitting.
_BILLING = "x-anthropic-billing-header"


def read_conversation(system: Any, messages: list[Any]) -> list[Message]:
    """The chat. Raises InvalidRequestError."""
    reading = _Reading()
    if system is not None:
        parts = [part for part in _read_texts(system, "system") if not part["text"].startswith(_BILLING)]
        if parts:
            reading.messages.append({"role": "system", "content": parts})
    for index, message in enumerate(messages):
        reading.read(message, f"messages[{index}]")
    return reading.messages


class _Reading:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._tool_names: dict[str, str] = {}
        self._current: Message = {}  # the part of the message that is being read which later blocks may join

    def read(self, message: Any, path: str) -> None:
        if not isinstance(message, dict):
            raise refuse(path, "must be an object with role and content")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise refuse(f"{path}.role", f"must be one of {', '.join(ROLES)}")
        if isinstance(content, str):
            self.messages.append({"role": role, "content": content})
            return
        if not isinstance(content, list):
            raise refuse(f"{path}.content", "must be a string or a list of content blocks")
        self._current = {}
        for index, block in enumerate(content):
            self._read_block(block, role, f"{path}.content[{index}]")
        if not content:
            self._open(role)
        self._join_empty()

    def _read_block(self, block: Any, role: str, path: str) -> None:
        if not isinstance(block, dict):
            raise refuse(path, "must be an object with a type")
        kind = block.get("type")
        reader = _READERS[role].get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise refuse(f"{path}.type", f"must be one of {', '.join(_READERS[role])} in a message of role {role}")
        reader(self, block, role, path)

    def _open(self, role: str) -> Message:
        if self._current.get("role") != role:
            self._current = {"role": role, "content": []}
            self.messages.append(self._current)
        return self._current

    def _join_empty(self) -> None:
        """A message without a text has the empty one; only calls stand without."""
        if self._current.get("content") == []:
            self._current["content"] = None if self._current.get("tool_calls") else ""

    def _text(self, block: dict[str, Any], role: str, path: str) -> None:
        self._open(role)["content"].append(_read_text(block, path))

    def _thinking(self, block: dict[str, Any], role: str, path: str) -> None:
        message = self._open(role)
        thinking = _read_string(block, "thinking", path)
        message["reasoning"] = "\n".join(filter(None, [message.get("reasoning"), thinking])) or None

    def _redacted_thinking(self, block: dict[str, Any], role: str, path: str) -> None:
        """It was never ours and says nothing to this model."""
        self._open(role)

    def _tool_use(self, block: dict[str, Any], role: str, path: str) -> None:
        call_id, name = _read_string(block, "id", path), _read_string(block, "name", path)
        arguments = block.get("input")
        if not isinstance(arguments, dict):
            raise refuse(f"{path}.input", "must be an object")
        self._tool_names[call_id] = name
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._open(role).setdefault("tool_calls", []).append(call)

    def _tool_result(self, block: dict[str, Any], role: str, path: str) -> None:
        call_id, content = _read_string(block, "tool_use_id", path), block.get("content")
        texts = [] if content is None else _read_texts(content, f"{path}.content")
        message: Message = {"role": "tool", "tool_call_id": call_id, "content": texts or ""}
        if call_id in self._tool_names:
            message["name"] = self._tool_names[call_id]
        self.messages.append(message)
        self._current = message


_Reader = Callable[[_Reading, dict[str, Any], str, str], None]
_READERS: dict[str, dict[str, _Reader]] = {
    "user": {"text": _Reading._text, "tool_result": _Reading._tool_result},
    "system": {"text": _Reading._text},
    "assistant": {
        "text": _Reading._text,
        "thinking": _Reading._thinking,
        "redacted_thinking": _Reading._redacted_thinking,
        "tool_use": _Reading._tool_use,
    },
}


def _read_texts(content: Any, path: str) -> list[dict[str, str]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise refuse(path, "must be a string or a list of text blocks")
    return [_read_text(block, f"{path}[{index}]") for index, block in enumerate(content)]


def _read_text(block: Any, path: str) -> dict[str, str]:
    if not isinstance(block, dict):
        raise refuse(path, "must be an object with a type")
    if block.get("type") != "text":
        raise refuse(f"{path}.type", "must be text: this model reads nothing else")
    return {"type": "text", "text": _read_string(block, "text", path)}


def _read_string(block: dict[str, Any], name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise refuse(f"{path}.{name}", "must be a string")
    return value
