"""``truncation: auto``: what is too long loses its oldest turns, as few as will do, instead of failing."""

from __future__ import annotations

from appliance.api.conversation.job import Caller, ChatJob, start_chat
from appliance.api.conversation.prompt import make_chat_prompt
from appliance.api.prompt import fit_prompt
from appliance.api.request_ids import make_object_id
from appliance.api.responses.input_items import Message
from appliance.api.responses.schemas import ResponsesRequest
from appliance.api.state import ApiState
from appliance.errors import ContextLengthError


async def start_fitting(request: ResponsesRequest, messages: list[Message], state: ApiState) -> ChatJob:
    """Start the chat, cut only where it must and may be. Raises APIError."""
    caller = Caller(make_object_id("resp", "_"), "responses", request.stream)
    try:
        return await start_chat(request.to_chat(messages), state, caller)
    except ContextLengthError:
        num_head = _count_head(messages)
        starts = [i for i, message in enumerate(messages) if i > num_head and message["role"] == "user"]
        if request.truncation != "auto" or not starts:
            raise
    head = messages[:num_head]
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        if await _fits(request, head + messages[starts[middle] :], state):
            high = middle
        else:
            low = middle + 1
    return await start_chat(request.to_chat(head + messages[starts[low] :]), state, caller)


def _count_head(messages: list[Message]) -> int:
    """The system's words at the beginning always stay."""
    roles = enumerate(message["role"] for message in messages)
    return next((i for i, role in roles if role not in ("system", "developer")), len(messages))


async def _fits(request: ResponsesRequest, messages: list[Message], state: ApiState) -> bool:
    chat = request.to_chat(messages)
    model = state.models.get(chat.model)
    try:
        prompt = await make_chat_prompt(chat, model, state, is_bounded=True)
        fit_prompt(prompt.token_ids, model, chat, param="messages")
    except ContextLengthError:
        return False
    return True
