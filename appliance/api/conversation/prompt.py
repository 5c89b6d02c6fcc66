"""From the fields of a chat to token ids: check the messages, render the template, tokenize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from appliance.api.conversation.messages import read_messages
from appliance.api.conversation.schemas import PromptFields
from appliance.api.event_loop import estimate_size, off_loop
from appliance.api.prompt import check_characters
from appliance.api.served_model import ServedModel
from appliance.api.state import ApiState
from appliance.errors import InvalidRequestError
from appliance.text.chat_messages import Message, joined_text
from appliance.text.control_text import unmark
from appliance.text.template_renderer import Rendering

_CHARS_AROUND_A_MESSAGE = 32  # an empty one is work, too


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation; an answer may continue the last message, which has this role and content."""

    text: str
    token_ids: list[int]
    last_role: str
    last_content: str


async def make_chat_prompt(
    request: PromptFields, model: ServedModel, state: ApiState, *, is_bounded: bool
) -> ChatPrompt:
    """Render and tokenize; off the event loop where there is much to do, the request's own template in a process.

    Raises InvalidRequestError; with `is_bounded` a conversation that cannot fit is refused before it is tokenized.
    """
    request.follow(state.settings)
    size = _estimate_size(request)
    if request.chat_template is None:
        return await off_loop(size, lambda: _make(request, model, is_bounded))
    messages = await off_loop(size, lambda: read_messages(request.messages))
    rendered = await state.own_templates.render(_describe(request, request.chat_template, model, messages))
    return await off_loop(size + len(rendered), lambda: _tokenize(rendered, request, model, messages, is_bounded))


def _estimate_size(request: PromptFields) -> int:
    # Contents, but also tool calls, reasoning and names.
    parts = [part for message in request.messages if isinstance(message, dict) for part in message.values()]
    sizes = map(estimate_size, [*parts, request.tools, request.documents, *request.template_kwargs.values()])
    return _CHARS_AROUND_A_MESSAGE * len(request.messages) + sum(sizes)


def _make(request: PromptFields, model: ServedModel, is_bounded: bool) -> ChatPrompt:
    messages = read_messages(request.messages)
    if model.chat_template is None:
        raise InvalidRequestError("this model has no chat template; use /v1/completions or start with --chat-template")
    rendered = model.chat_template.render(**_arguments(request, messages))
    return _tokenize(rendered, request, model, messages, is_bounded)


def _tokenize(
    rendered: str, request: PromptFields, model: ServedModel, messages: list[Message], is_bounded: bool
) -> ChatPrompt:
    if is_bounded:
        check_characters(rendered, model, "messages")
    token_ids = model.tokenizer.encode_chat(rendered, request.add_special_tokens)
    last = messages[-1]
    return ChatPrompt(unmark(rendered), token_ids, last["role"], joined_text(last.get("content"), "messages") or "")


def _arguments(request: PromptFields, messages: list[Message]) -> dict[str, Any]:
    """Of `ChatTemplate.render`."""
    return {
        **request.template_kwargs,
        "messages": messages,
        "tools": [tool.to_template() for tool in request.tools] or None,
        "documents": request.documents,
        "add_generation_prompt": request.opens_answer,
        "continue_final_message": request.continue_final_message,
    }


def _describe(request: PromptFields, source: str, model: ServedModel, messages: list[Message]) -> Rendering:
    return Rendering(
        source,
        _arguments(request, messages),
        model.baked.tokenizer_config,
        model.tokenizer.special_tokens,
        model.tokenizer.added_tokens,
    )
