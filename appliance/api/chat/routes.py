"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from appliance.api.chat.serving import collect_chat
from appliance.api.chat.streaming import ChatPrinter
from appliance.api.conversation.job import start_chat
from appliance.api.conversation.schemas import ChatRequest
from appliance.api.json_response import json_response
from appliance.api.openapi import describe_body
from appliance.api.request_body import json_body
from appliance.api.state import get_state, name_request
from appliance.api.streaming import EventStreamResponse

router = APIRouter(tags=["generation"])


@router.post("/v1/chat/completions", openapi_extra=describe_body(ChatRequest))
async def create_chat_completion(
    request: Request, body: Annotated[ChatRequest, Depends(json_body(ChatRequest))]
) -> Response:
    """Answer a conversation."""
    state = get_state(request)
    name_request(request, body.request_id)
    job = await start_chat(body, state)
    stream = state.drain.follow(job.make_stream())
    if body.stream:
        include_usage, continuous = state.usage_options(body.stream_options)
        printer = ChatPrinter(job, include_usage=include_usage, continuous_usage=continuous)
        return await EventStreamResponse.start(request, stream, printer, state.streaming_options(body))
    async with stream:
        stream.watch(request.receive)
        return json_response(await collect_chat(job, stream))
