"""Probes: /livez (this process), /readyz, /health and /ping (a request would be served), /startupz (progress)."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from appliance.api.json_response import json_response
from appliance.api.served_model import ServedModel
from appliance.api.state import ApiState, get_state
from engine.errors import EngineError

router = APIRouter(tags=["probes"])

INFO_TIMEOUT_S = 1.0


@router.head("/livez", include_in_schema=False)
@router.get("/livez")
async def livez(request: Request) -> Response:
    """200 as long as this process answers."""
    return json_response({"status": "alive"})


@router.head("/health", include_in_schema=False)
@router.head("/ping", include_in_schema=False)
@router.post("/ping", include_in_schema=False)
@router.get("/ping", include_in_schema=False)
@router.get("/health")
async def health(request: Request) -> Response:
    """200 without a body when every engine is ready, else 503 that says why."""
    ready, report = await _report(get_state(request))
    return Response(status_code=200) if ready else json_response(report, 503)


@router.head("/readyz", include_in_schema=False)
@router.head("/startupz", include_in_schema=False)
@router.get("/startupz", include_in_schema=False)
@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """200 when every engine is ready, else 503; either way with phase, percent and seconds of each model's start."""
    ready, report = await _report(get_state(request))
    return json_response(report, 200 if ready else 503)


async def _report(state: ApiState) -> tuple[bool, dict[str, Any]]:
    engines = await asyncio.gather(*(_report_engine(model) for model in state.models))
    ready = bool(engines) and all(engine["is_ready"] for engine in engines) and not state.drain.is_on
    status = "ready" if ready else "draining" if state.drain.is_on else "not ready"
    return ready, {"status": status, "models": engines}


async def _report_engine(model: ServedModel) -> dict[str, Any]:
    try:
        info = await model.engine.info(INFO_TIMEOUT_S)
    except EngineError as error:
        return {"model": model.name, "is_ready": False, "phase": "away", "percent": 0.0, "error": str(error)}
    return {
        "model": model.name,
        "is_ready": info.is_ready,
        "phase": info.phase,
        "percent": info.percent,
        "seconds": info.phase_seconds,
        "error": info.error,
    }
