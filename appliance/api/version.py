"""GET /version."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from appliance import __version__
from appliance.api.json_response import json_response

router = APIRouter(tags=["probes"])


@router.get("/version")
async def version() -> Response:
    """The package's version."""
    return json_response({"version": __version__})
