"""What a chat template can do, found out by rendering small conversations and looking for a word in the result.

Rendering tells more than reading the source: a template may mention tools and drop them, or need a null content to
show a call. The conversations are ours; what follows from the answers is decided in `chat_messages`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Render = Callable[..., str | None]  # (messages, tools=…) → text, None where the template fails

_WORD = "zebrafish"
_USER = {"role": "user", "content": "hi"}
_TOOL = {
    "type": "function",
    "function": {
        "name": _WORD,
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "d"}}, "required": []},
    },
}
_OTHER_TOOL = {**_TOOL, "function": {**_TOOL["function"], "name": "f"}}  # type: ignore[dict-item]


@dataclass(frozen=True)
class TemplateAbilities:
    """How a template wants its messages; the defaults are what most templates written for tools take."""

    shows_tools: bool = True
    takes_tool_calls: bool = True
    takes_tool_role: bool = True
    takes_system_role: bool = True
    takes_developer_role: bool = False
    needs_typed_content: bool = False  # content must be a list of parts
    needs_string_arguments: bool = False  # a call's arguments must be JSON text
    empty_content: str | None = ""  # what stands for the missing text of a message that only calls tools


def find_abilities(render: Render) -> TemplateAbilities:
    """Try a template out."""
    typed = not _shows(render, [_message("user", _WORD)]) and _shows(render, [_message("user", _typed(_WORD))])
    call = next((shape for shape in _CALL_SHAPES if _shows_call(render, *shape)), None)
    content, is_string = call or ("", False)
    return TemplateAbilities(
        shows_tools=_shows(render, [_content(_USER, typed)], tools=[_TOOL]),
        takes_tool_calls=call is not None,
        takes_tool_role=_takes_tool_role(render, typed, call),
        takes_system_role=_shows(render, [_content(_message("system", _WORD), typed), _content(_USER, typed)]),
        takes_developer_role=_takes_developer_role(render, typed),
        needs_typed_content=typed,
        needs_string_arguments=is_string,
        empty_content=content,
    )


_CALL_SHAPES: list[tuple[str | None, bool]] = [("", False), (None, False), ("", True), (None, True)]


def _shows_call(render: Render, content: str | None, is_string: bool) -> bool:
    text = render([_USER, _call_message(_WORD, content, is_string), _result_message("r")], tools=[_OTHER_TOOL])
    text = text if text is not None else render([_USER, _call_message(_WORD, content, is_string)], tools=[_OTHER_TOOL])
    if text is None or _WORD not in text:
        return False
    is_garbled = "{'a'" in text or '{\\"a\\"' in text or (content is None and "None" in text)
    return "needle" in text and not is_garbled


def _takes_tool_role(render: Render, typed: bool, call: tuple[str | None, bool] | None) -> bool:
    said = _call_message("f", *call) if call else _content(_message("assistant", "ok"), typed)
    return _shows(render, [_content(_USER, typed), said, _content(_result_message(_WORD), typed)], tools=[_OTHER_TOOL])


def _takes_developer_role(render: Render, typed: bool) -> bool:
    """Shown, and not merely because the template writes any role it is given."""
    user = _content(_USER, typed)
    as_developer = render([_content(_message("developer", _WORD), typed), user])
    as_anything = render([_content(_message("narrator", _WORD), typed), user])
    if as_developer is None or _WORD not in as_developer:
        return False
    return as_anything is None or as_anything.replace("narrator", "developer") != as_developer


def _shows(render: Render, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> bool:
    return _WORD in (render(messages, tools=tools) or "")


def _message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def _content(message: dict[str, Any], typed: bool) -> dict[str, Any]:
    return {**message, "content": _typed(message["content"])} if typed else message


def _typed(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _call_message(name: str, content: str | None, is_string: bool) -> dict[str, Any]:
    arguments: Any = '{"a": "needle"}' if is_string else {"a": "needle"}
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "call00001", "type": "function", "function": function}],
    }


def _result_message(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "name": "f", "tool_call_id": "call00001"}
