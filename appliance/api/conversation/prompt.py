"""From the fields of a chat to token ids: check the messages, render the template, tokenize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from appliance.api.conversation.messages import read_messages
from appliance.api.conversation.schemas import PromptFields
from appliance.api.prompt import INLINE_CHARS, check_characters, off_loop
from appliance.api.served_model import ServedModel
from appliance.errors import ApplianceError, InvalidRequestError
from appliance.settings import Settings
from appliance.text.chat_messages import joined_text
from appliance.text.chat_template import ChatTemplate
from appliance.text.control_text import unmark


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation; an answer may continue the last message, which has this role and content."""

    text: str
    token_ids: list[int]
    last_role: str
    last_content: str


async def make_chat_prompt(
    request: PromptFields, model: ServedModel, settings: Settings, *, is_bounded: bool
) -> ChatPrompt:
    """Render and tokenize; off the event loop where the messages are large or the template is the request's own.

    Raises InvalidRequestError; with `is_bounded` a conversation that cannot fit is refused before it is tokenized.
    """
    request.follow(settings)
    size = sum(map(_size, request.messages)) + (INLINE_CHARS + 1 if request.chat_template else 0)
    return await off_loop(size, lambda: _make(request, model, is_bounded))


def _size(message: Any) -> int:
    """Characters, or what counts as many where that takes a closer look."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return len(content) + 1
    return INLINE_CHARS + 1 if content else 1


def _make(request: PromptFields, model: ServedModel, is_bounded: bool) -> ChatPrompt:
    messages = read_messages(request.messages)
    rendered = _render(request, model, messages)
    if is_bounded:
        check_characters(rendered, model, "messages")
    token_ids = model.tokenizer.encode_chat(rendered, request.add_special_tokens)
    last = messages[-1]
    return ChatPrompt(unmark(rendered), token_ids, last["role"], joined_text(last.get("content"), "messages") or "")


def _render(request: PromptFields, model: ServedModel, messages: list[dict[str, Any]]) -> str:
    return _find_template(request, model).render(
        messages,
        tools=[tool.to_template() for tool in request.tools] or None,
        documents=request.documents,
        add_generation_prompt=request.opens_answer,
        continue_final_message=request.continue_final_message,
        **request.template_kwargs,
    )


def _find_template(request: PromptFields, model: ServedModel) -> ChatTemplate:
    if request.chat_template is not None:
        try:
            return ChatTemplate(request.chat_template, model.baked.tokenizer_config, model.tokenizer)
        except ApplianceError as error:
            raise InvalidRequestError(f"chat_template: {error}", param="chat_template") from None
    if model.chat_template is None:
        raise InvalidRequestError("this model has no chat template; use /v1/completions or start with --chat-template")
    return model.chat_template
