"""GET /metrics: what the engines and the API workers count, as one exposition.

Prometheus' text, or OpenMetrics' where the scraper prefers it. Scrapes that come while one is being collected share
the next collection, so that many scrapers cost no more than one.
"""

from __future__ import annotations

import asyncio
import logging

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from appliance.api.served_model import ServedModel
from appliance.api.state import ApiState, get_state
from appliance.metrics import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE, merge_expositions
from engine.errors import EngineError

logger = logging.getLogger(__name__)
router = APIRouter(tags=["metrics"])

ENGINE_TIMEOUT_S = 2.0


class SharedScrapes:
    """Collects for all who ask at the same time, once in each format."""

    def __init__(self, state: ApiState) -> None:
        self._state = state
        self._running: dict[bool, asyncio.Task[str]] = {}
        self._next: dict[bool, asyncio.Task[str]] = {}

    async def get(self, *, openmetrics: bool) -> str:
        """Everything as it is now, collected after this call."""
        task = self._next.get(openmetrics)
        if task is None:
            task = asyncio.create_task(self._collect_after(self._running.get(openmetrics), openmetrics))
            self._next[openmetrics] = task
        return await asyncio.shield(task)

    async def _collect_after(self, running: asyncio.Task[str] | None, openmetrics: bool) -> str:
        if running is not None:
            await asyncio.wait([running])
        # From here on new scrapes have to wait for their own collection.
        self._running[openmetrics] = self._next.pop(openmetrics)
        return await collect(self._state, openmetrics=openmetrics)


async def collect(state: ApiState, *, openmetrics: bool) -> str:
    """An engine that is away is missing from the text; the scrape still succeeds."""
    texts = await asyncio.gather(*(_engine_metrics(model, openmetrics) for model in state.models))
    # A loading engine has nothing to tell yet.
    engines = {model.name: bool(text) for model, text in zip(state.models, texts, strict=True)}
    own = state.metrics.render(engines, openmetrics=openmetrics)
    return merge_expositions([*texts, own], openmetrics=openmetrics)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """For Prometheus and its like."""
    app = request.app
    if not hasattr(app.state, "scrapes"):
        app.state.scrapes = SharedScrapes(get_state(request))
    openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
    text = await app.state.scrapes.get(openmetrics=openmetrics)
    return Response(text, headers={"content-type": OPENMETRICS_CONTENT_TYPE if openmetrics else CONTENT_TYPE})


async def _engine_metrics(model: ServedModel, openmetrics: bool) -> str:
    try:
        return await model.engine.metrics(ENGINE_TIMEOUT_S, openmetrics=openmetrics)
    except EngineError as error:
        logger.warning("model=%s has no metrics: %s", model.name, error)
        return ""
