"""POST /invocations: one route for hosts that know only one; the body's shape says which request it is."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from appliance.api.chat.routes import create_chat_completion
from appliance.api.completions.routes import create_completion
from appliance.api.completions.schemas import CompletionRequest
from appliance.api.conversation.schemas import ChatRequest
from appliance.api.openapi import describe_body
from appliance.api.request_body import read_object, validate
from appliance.errors import InvalidRequestError

router = APIRouter(tags=["generation"])


@router.post("/invocations", openapi_extra=describe_body(ChatRequest, CompletionRequest))
async def invoke(request: Request, body: Annotated[dict[str, Any], Depends(read_object)]) -> Response:
    """Messages make a chat, a prompt makes a completion."""
    if "messages" in body:
        return await create_chat_completion(request, validate(ChatRequest, body))
    if "prompt" in body:
        return await create_completion(request, validate(CompletionRequest, body))
    raise InvalidRequestError("the request must have messages (a chat) or a prompt (a completion)")
