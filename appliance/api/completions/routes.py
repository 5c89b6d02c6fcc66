"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from appliance.api.completions.schemas import CompletionRequest
from appliance.api.completions.serving import collect_completion, start_completion
from appliance.api.completions.streaming import CompletionPrinter
from appliance.api.json_response import json_response
from appliance.api.openapi import describe_body
from appliance.api.request_body import json_body
from appliance.api.state import get_state, name_request
from appliance.api.streaming import EventStreamResponse

router = APIRouter(tags=["generation"])


@router.post("/v1/completions", openapi_extra=describe_body(CompletionRequest))
async def create_completion(
    request: Request, body: Annotated[CompletionRequest, Depends(json_body(CompletionRequest))]
) -> Response:
    """Continue one or more texts."""
    state = get_state(request)
    name_request(request, body.request_id)
    job = await start_completion(body, state)
    stream = state.drain.follow(job.make_stream())
    if body.stream:
        include_usage, continuous = state.usage_options(body.stream_options)
        printer = CompletionPrinter(job, include_usage=include_usage, continuous_usage=continuous)
        return await EventStreamResponse.start(request, stream, printer, state.streaming_options(body))
    async with stream:
        stream.watch(request.receive)
        return json_response(await collect_completion(job, stream))
