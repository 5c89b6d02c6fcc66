"""GET /metrics: what the engines and the API workers count, as one text exposition."""

from __future__ import annotations

import asyncio
import logging

from fastapi import APIRouter, Request
from starlette.responses import Response

from appliance.api.served_model import ServedModel
from appliance.api.state import get_state
from appliance.metrics import CONTENT_TYPE, merge_expositions
from engine.errors import EngineError

logger = logging.getLogger(__name__)
router = APIRouter(tags=["metrics"])

ENGINE_TIMEOUT_S = 2.0


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """An engine that is away is missing from the text; the scrape still succeeds."""
    state = get_state(request)
    texts = await asyncio.gather(*(_engine_metrics(model) for model in state.models))
    text = merge_expositions([*texts, state.metrics.render()])
    return Response(text, headers={"content-type": CONTENT_TYPE})


async def _engine_metrics(model: ServedModel) -> str:
    try:
        return await model.engine.metrics(ENGINE_TIMEOUT_S)
    except EngineError as error:
        logger.warning("model=%s has no metrics: %s", model.name, error)
        return ""
