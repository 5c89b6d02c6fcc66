"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from appliance.api.conversation.field_names import renamed_fields
from appliance.api.conversation.job import Caller, start_chat
from appliance.api.conversation.prompt import make_chat_prompt
from appliance.api.json_response import json_response
from appliance.api.messages.schemas import FIELD_NAMES, CountTokensRequest, MessagesRequest
from appliance.api.messages.serving import MessageJob, collect_message
from appliance.api.messages.streaming import MessagePrinter
from appliance.api.openapi import describe_body
from appliance.api.request_body import json_body
from appliance.api.request_ids import make_object_id
from appliance.api.state import get_state, name_request
from appliance.api.streaming import EventStreamResponse

router = APIRouter(tags=["generation"])


@router.post("/v1/messages", openapi_extra=describe_body(MessagesRequest))
async def create_message(
    request: Request, body: Annotated[MessagesRequest, Depends(json_body(MessagesRequest))]
) -> Response:
    """Answer a conversation."""
    name_request(request, body.request_id)
    with renamed_fields(FIELD_NAMES):
        response = await _answer(request, body)
    return _with_id(request, response)


async def _answer(request: Request, body: MessagesRequest) -> Response:
    state = get_state(request)
    caller = Caller(make_object_id("msg", "_"), "other", body.stream)
    job = MessageJob(body, await start_chat(body.to_chat(), state, caller))
    stream = state.drain.follow(job.chat.make_stream())
    if body.stream:
        printer = MessagePrinter(job, request.state.request_id)
        return await EventStreamResponse.start(request, stream, printer, state.streaming_options(body))
    async with stream:
        stream.watch(request.receive)
        return json_response(await collect_message(job, stream))


@router.post("/v1/messages/count_tokens", openapi_extra=describe_body(CountTokensRequest))
async def count_tokens(
    request: Request, body: Annotated[CountTokensRequest, Depends(json_body(CountTokensRequest))]
) -> Response:
    """The tokens of a conversation; not bounded by the context."""
    state = get_state(request)
    model = state.models.get(body.model)
    with renamed_fields(FIELD_NAMES):
        prompt = await make_chat_prompt(body.to_chat(), model, state, is_bounded=False)
    return _with_id(request, json_response({"input_tokens": len(prompt.token_ids)}))


def _with_id(request: Request, response: Response) -> Response:
    """Anthropic's clients look for the request's id under this name."""
    response.headers["request-id"] = request.state.request_id
    return response
