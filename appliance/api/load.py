"""GET /load: requests to the model that are in flight, counted until the last byte of their answer was sent."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from appliance.api.auth import get_route_path
from appliance.api.json_response import json_response
from appliance.api.state import get_state
from appliance.metrics import ApiMetrics

router = APIRouter(tags=["metrics"])

COUNTED_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/invocations"})


@router.get("/load")
async def load(request: Request) -> Response:
    """Over all API workers; 0 where load tracking is off."""
    return json_response({"server_load": get_state(request).metrics.server_load()})


class LoadMiddleware:
    """Counts what is in flight."""

    def __init__(self, app: ASGIApp, *, metrics: ApiMetrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A stream counts until it ends."""
        if scope["type"] != "http" or get_route_path(scope) not in COUNTED_PATHS:
            return await self.app(scope, receive, send)
        with self.metrics.load.track_inprogress():
            return await self.app(scope, receive, send)
