"""From the fields of a chat to token ids: check the messages, render the template, tokenize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from appliance.api.conversation.messages import read_messages
from appliance.api.conversation.schemas import PromptFields
from appliance.api.event_loop import estimate_size, off_loop
from appliance.api.prompt import check_characters
from appliance.api.served_model import ServedModel
from appliance.errors import ApplianceError, InvalidRequestError
from appliance.settings import Settings
from appliance.text.chat_messages import joined_text
from appliance.text.chat_template import ChatTemplate
from appliance.text.control_text import unmark

_CHARS_AROUND_A_MESSAGE = 32  # an empty one is work, too


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
    """Render and tokenize; off the event loop where there is much to render or the template is the request's own.

    Raises InvalidRequestError; with `is_bounded` a conversation that cannot fit is refused before it is tokenized.
    """
    request.follow(settings)
    return await off_loop(_estimate_size(request), lambda: _make(request, model, is_bounded))


def _estimate_size(request: PromptFields) -> int:
    # Contents, but also tool calls, reasoning and names.
    parts = [part for message in request.messages if isinstance(message, dict) for part in message.values()]
    rest = [request.tools, request.documents, [request.chat_template] if request.chat_template else None]
    sizes = map(estimate_size, [*parts, *rest, *request.template_kwargs.values()])
    return _CHARS_AROUND_A_MESSAGE * len(request.messages) + sum(sizes)


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
