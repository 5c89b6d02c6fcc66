"""POST /v1/responses, and what can be done with a stored response."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from appliance.api.conversation.field_names import renamed_fields
from appliance.api.fields import refuse
from appliance.api.json_response import json_response
from appliance.api.openapi import describe_body
from appliance.api.request_body import json_body
from appliance.api.responses.schemas import FIELD_NAMES, ResponsesRequest
from appliance.api.responses.serving import (
    collect_response,
    delete_stored,
    find_response,
    make_store,
    start_response,
)
from appliance.api.responses.streaming import ResponsePrinter
from appliance.api.state import get_state, name_request
from appliance.api.streaming import EventStreamResponse
from appliance.errors import InvalidRequestError

router = APIRouter(tags=["generation"])


@router.post("/v1/responses", openapi_extra=describe_body(ResponsesRequest))
async def create_response(
    request: Request, body: Annotated[ResponsesRequest, Depends(json_body(ResponsesRequest))]
) -> Response:
    """Answer an input, which may continue a stored response."""
    state = get_state(request)
    name_request(request, body.request_id)
    with renamed_fields(FIELD_NAMES):
        job = await start_response(body, state, make_store(request))
        stream = state.drain.follow(job.chat.make_stream())
        if body.stream:
            options = state.streaming_options(body)
            return await EventStreamResponse.start(request, stream, ResponsePrinter(job), options)
        async with stream:
            stream.watch(request.receive)
            return json_response(await collect_response(job, stream))


@router.get("/v1/responses/{response_id}")
async def retrieve_response(request: Request, response_id: str, stream: bool = False) -> Response:
    """A stored response."""
    stored = await find_response(response_id, make_store(request))
    if stream:
        raise refuse("stream", "is only for background responses, which this server does not make")
    return json_response(stored.response)


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a stored response; those that continued it still know what was said."""
    await delete_stored(response_id, make_store(request))
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Only a background response could be cancelled, and there are none: to cancel a running one, hang up."""
    await find_response(response_id, make_store(request))
    raise InvalidRequestError("a response that was not made in the background cannot be cancelled", param="response_id")
