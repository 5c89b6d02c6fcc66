"""Reads ``input``: items of the Responses API, checked with the path of every fault, as messages of a chat.

An item is kept in a plain form, which is also what the store holds:
``{"type": "message", "role", "content"}`` with content a text or text parts, ``{"type": "function_call", "call_id",
"name", "arguments"}``, ``{"type": "function_call_output", "call_id", "output"}``, ``{"type": "reasoning", "text"}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from appliance.api.fields import refuse

Item = dict[str, Any]
Message = dict[str, Any]

ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def read_items(value: Any) -> list[Item]:
    """``input`` in plain form. Raises InvalidRequestError."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise refuse("input", "must be a string or a list of at least one item")
    return [_read_item(item, f"input[{index}]") for index, item in enumerate(value)]


def _read_item(item: Any, path: str) -> Item:
    if not isinstance(item, dict):
        raise refuse(path, "must be an object")
    kind = item.get("type") or "message"
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise refuse(f"{path}.type", f"must be one of {', '.join(_READERS)}")
    return reader(item, path)


def _read_message(item: Item, path: str) -> Item:
    role = item.get("role")
    if role not in ROLES:
        raise refuse(f"{path}.role", f"must be one of {', '.join(ROLES)}")
    return {"type": "message", "role": role, "content": _read_text(item.get("content"), f"{path}.content")}


def _read_call(item: Item, path: str) -> Item:
    names = ("call_id", "name", "arguments")
    return {"type": "function_call"} | {name: _read_string(item, name, path) for name in names}


def _read_output(item: Item, path: str) -> Item:
    output = _read_text(item.get("output"), f"{path}.output")
    return {"type": "function_call_output", "call_id": _read_string(item, "call_id", path), "output": output}


def _read_reasoning(item: Item, path: str) -> Item:
    """The thinking itself or, without it, its summary; encrypted thinking is not ours and says nothing."""
    for name in ("content", "summary"):
        parts = item.get(name) or []
        if not isinstance(parts, list):
            raise refuse(f"{path}.{name}", "must be a list")
        texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
        if texts:
            return {"type": "reasoning", "text": "\n".join(text for text in texts if isinstance(text, str))}
    return {"type": "reasoning", "text": ""}


_READERS: dict[str, Callable[[Item, str], Item]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_output,
    "reasoning": _read_reasoning,
}


def _read_string(item: Item, name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise refuse(f"{path}.{name}", "must be a string")
    return value


def _read_text(content: Any, path: str) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refuse(path, "must be a string or a list of parts")
    return [{"type": "text", "text": _read_part(part, f"{path}[{index}]")} for index, part in enumerate(content)]


def _read_part(part: Any, path: str) -> str:
    if not isinstance(part, dict):
        raise refuse(path, "must be an object with a type")
    kind = part.get("type")
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise refuse(f"{path}.type", "must be input_text or output_text: this model reads nothing else")
    return _read_string(part, field, path)


def to_messages(items: Iterable[Item], instructions: str | None) -> list[Message]:
    """The items as a chat. Instructions come first and join a system message that follows them."""
    folding = _Folding()
    if instructions:
        folding.messages.append({"role": "system", "content": instructions})
    for item in items:
        folding.add(item)
    return folding.messages


class _Folding:
    """Thinking, text and calls of one turn are items of their own here, and one assistant message there."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._reasoning: list[str] = []
        self._names: dict[str, str] = {}

    def add(self, item: Item) -> None:
        match item["type"]:
            case "reasoning":
                self._reasoning.append(item["text"])
            case "function_call":
                self._add_call(item)
            case "function_call_output":
                self._add_output(item)
            case _:
                self._add_message(item["role"], item["content"] or "")

    def _add_message(self, role: str, content: Any) -> None:
        last = self.messages[-1] if self.messages else {}
        if role == "system" and len(self.messages) == 1 and last["role"] == "system":
            last["content"] = _join(last["content"], content)
        elif role == "assistant" and last.get("tool_calls") and not last.get("content") and not self._reasoning:
            last["content"] = content
        else:
            self._open(role, content)

    def _add_call(self, item: Item) -> None:
        self._names[item["call_id"]] = item["name"]
        if self._reasoning or not self.messages or self.messages[-1]["role"] != "assistant":
            self._open("assistant", None)
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def _add_output(self, item: Item) -> None:
        message = {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"] or ""}
        name = self._names.get(item["call_id"])
        self.messages.append(message | ({"name": name} if name else {}))

    def _open(self, role: str, content: Any) -> None:
        message = {"role": role, "content": content}
        if role == "assistant":
            reasoning, self._reasoning = "\n".join(filter(None, self._reasoning)), []
            message |= {"reasoning": reasoning} if reasoning else {}
        self.messages.append(message)


def _join(instructions: str, content: Any) -> str:
    text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
    return f"{instructions}\n\n{text}"
