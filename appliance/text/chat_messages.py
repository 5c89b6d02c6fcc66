"""Brings a conversation into the shape a chat template can take, and writes as text what the template would drop.

Works on marked data (see `control_text`): the text added here is ours and stays unmarked. Which shapes a template
takes is found out by `template_abilities`.
"""

from __future__ import annotations

import json
from typing import Any

from appliance.errors import InvalidRequestError
from appliance.text.template_abilities import TemplateAbilities

Message = dict[str, Any]

_TOOLS_PROMPT = """\
You can call these functions. Each line between the tags describes one of them as JSON:
<tools>
{tools}
</tools>
To call a function, write one block like this for each call, with the arguments as a JSON object:
<tool_call>
{{"name": "function name", "arguments": {{"parameter": "value"}}}}
</tool_call>
The results come back between <tool_response> and </tool_response>."""


def shape_messages(messages: list[Message], abilities: TemplateAbilities, tools: list[Any] | None) -> list[Message]:
    """The conversation as the template takes it. ``tools`` only where the template itself does not show them."""
    shaped = [_shape_message(message, index, abilities) for index, message in enumerate(messages)]
    if not abilities.takes_developer_role:
        shaped = _developer_as_system(shaped)
    if tools:
        shaped = _prepend_system(shaped, _TOOLS_PROMPT.format(tools="\n".join(map(_json, tools))))
    if not abilities.takes_tool_role:
        shaped = _tool_results_as_user(shaped)
    if not abilities.takes_system_role:
        shaped = _system_into_user(shaped)
    return [_type_content(message) for message in shaped] if abilities.needs_typed_content else shaped


def joined_text(content: Any, param: str) -> str | None:
    """A message's content as one string: parts of type text are joined by newlines."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part_text(part, f"{param}[{index}]") for index, part in enumerate(content))
    raise InvalidRequestError(f"{param} must be a string or a list of text parts", param=param)


def parsed_arguments(arguments: Any) -> dict[str, Any]:
    """A call's arguments as an object: history that is no JSON object becomes ``{}``, so the conversation can go on."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return {}
    return arguments if isinstance(arguments, dict) else {}


def _shape_message(message: Message, index: int, abilities: TemplateAbilities) -> Message:
    shaped = {key: value for key, value in message.items() if value is not None and value != {}}
    shaped["role"] = message.get("role", "")
    content = joined_text(message.get("content"), f"messages[{index}].content")
    calls = shaped.pop("tool_calls", None) or []
    if calls and abilities.takes_tool_calls:
        shaped["tool_calls"] = [_shape_call(call, abilities) for call in calls]
        content = content or abilities.empty_content
    elif calls:
        content = "\n".join(filter(None, [content, *map(_call_text, calls)]))
    shaped["content"] = content if calls else content or ""
    return _with_reasoning(shaped)


def _with_reasoning(message: Message) -> Message:
    reasoning = message.get("reasoning_content") or message.get("reasoning") or message.get("thinking")
    if not reasoning:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _shape_call(call: dict[str, Any], abilities: TemplateAbilities) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments: Any = parsed_arguments(function.get("arguments"))
    if abilities.needs_string_arguments:
        arguments = _json(arguments)
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _call_text(call: dict[str, Any]) -> str:
    function = call.get("function") or {}
    body = {"name": function.get("name", ""), "arguments": parsed_arguments(function.get("arguments"))}
    return f"<tool_call>\n{_json(body)}\n</tool_call>"


def _developer_as_system(messages: list[Message]) -> list[Message]:
    """The developer's words are the system's, joined to a system message right before or after."""
    result: list[Message] = []
    was_developer = False
    for message in messages:
        is_developer = message["role"] == "developer"
        message = {**message, "role": "system"} if is_developer else message
        if (
            message["role"] == "system"
            and result
            and result[-1]["role"] == "system"
            and (is_developer or was_developer)
        ):
            result[-1] = {**result[-1], "content": _paragraphs(result[-1]["content"], message["content"])}
        else:
            result.append(message)
        was_developer = is_developer
    return result


def _prepend_system(messages: list[Message], text: str) -> list[Message]:
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": _paragraphs(messages[0]["content"], text)}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _tool_results_as_user(messages: list[Message]) -> list[Message]:
    result: list[Message] = []
    follows_result = False
    for message in messages:
        if is_result := message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if follows_result:
                text = f"{result.pop()['content']}\n{text}"
            message = {"role": "user", "content": text}
        result.append(message)
        follows_result = is_result
    return result


def _system_into_user(messages: list[Message]) -> list[Message]:
    """Each system message goes to the head of the user message that follows it."""
    result: list[Message] = []
    pending = ""
    for message in messages:
        if message["role"] == "system":
            pending = _paragraphs(pending, message["content"])
            continue
        if pending and message["role"] == "user":
            message, pending = {**message, "content": _paragraphs(pending, message["content"])}, ""
        result.append(message)
    return [*result, {"role": "user", "content": pending}] if pending else result


def _type_content(message: Message) -> Message:
    content = message["content"]
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _part_text(part: Any, param: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        for key in ("text", "refusal"):
            if isinstance(part.get(key), str) and part.get("type", key) in (key, "input_text", "output_text"):
                return str(part[key])
        raise InvalidRequestError(f"{param}: only parts of type text can be read by this model", param=param)
    raise InvalidRequestError(f"{param} must be an object with type text", param=param)


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(filter(None, texts))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
