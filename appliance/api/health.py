"""Probes: /livez (this process), /health, /ping (a request would be served), /readyz (it should come), /startupz."""

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
RETRY_AFTER = {"retry-after": "1"}


@router.head("/livez", include_in_schema=False)
@router.get("/livez")
async def livez(request: Request) -> Response:
    """200 unless only a new container would help: while the box restarts an engine by itself, it is alive."""
    if get_state(request).is_stuck:
        return json_response({"status": "stuck", "reason": "an engine does not come back"}, 503, RETRY_AFTER)
    return json_response({"status": "alive"})


@router.head("/health", include_in_schema=False)
@router.head("/ping", include_in_schema=False)
@router.post("/ping", include_in_schema=False)
@router.get("/ping", include_in_schema=False)
@router.get("/health", response_class=Response)
async def health(request: Request) -> Response:
    """200 without a body when a request would be served, else 503 that says why."""
    state = get_state(request)
    report = await _report(state)
    if report["status"] == "ready" or (report["status"] == "draining" and not state.drain.is_on):
        return Response(status_code=200)
    return json_response(report, 503, RETRY_AFTER)


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """200 when every engine has produced a token and the box is in rotation, else 503; either way with the details."""
    report = await _report(get_state(request))
    return json_response(report) if report["status"] == "ready" else json_response(report, 503, RETRY_AFTER)


@router.head("/startupz", include_in_schema=False)
@router.get("/startupz")
async def startupz(request: Request) -> Response:
    """200 once every engine is ready, else 503; either way with phase, percent and seconds of each model's start."""
    report = await _report(get_state(request))
    return json_response(report, 503, RETRY_AFTER) if report["status"] == "not ready" else json_response(report)


async def _report(state: ApiState) -> dict[str, Any]:
    """``status``: not ready (an engine loads or is away), draining (nothing new should come), ready."""
    engines = await asyncio.gather(*(_report_engine(model) for model in state.models))
    are_ready = bool(engines) and all(engine["is_ready"] for engine in engines)
    status = "draining" if state.drain.is_on else "not ready"
    if are_ready:
        status = "draining" if state.drain.wants_no_work else "ready"
    return {"status": status, "models": engines}


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
