"""Puts the API together: routers, middleware, error handlers, and the lifespan of the engines' clients."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import APIRouter, FastAPI

from appliance import __version__
from appliance.api import health, invocations, load, metrics, models, tokenize, version
from appliance.api.chat import routes as chat
from appliance.api.completions import routes as completions
from appliance.api.error_handlers import HANDLERS, Envelope
from appliance.api.messages import routes as messages
from appliance.api.messages.errors import encode_error as encode_messages_error
from appliance.api.middleware import make_middleware
from appliance.api.openapi import install_openapi
from appliance.api.page import reference
from appliance.api.page import routes as page
from appliance.api.responses import routes as responses
from appliance.api.served_model import ServedModel, ServedModels, load_models
from appliance.api.state import ApiState
from appliance.settings import Settings, load_rendered

logger = logging.getLogger(__name__)


def _always(settings: Settings) -> bool:
    return True


ROUTERS: tuple[tuple[APIRouter, Callable[[Settings], bool]], ...] = (
    (chat.router, _always),
    (completions.router, _always),
    (responses.router, _always),
    (messages.router, _always),
    (invocations.router, _always),
    (models.router, _always),
    (tokenize.router, _always),
    (tokenize.info_router, lambda settings: settings.enable_tokenizer_info_endpoint),
    (health.router, _always),
    (version.router, _always),
    (load.router, _always),
    (metrics.router, _always),
    (page.router, lambda settings: not settings.disable_page),
    (reference.router, lambda settings: not settings.disable_fastapi_docs),
)

# Paths whose errors do not look like OpenAI's, whatever raises them.
ENVELOPES: dict[str, Envelope] = {"/v1/messages": encode_messages_error}


def create_app(settings: Settings, models: Sequence[ServedModel] | None = None) -> FastAPI:
    """The ASGI application for these models (default: those that the settings name). Raises ApplianceError."""
    served = ServedModels(load_models(settings) if models is None else models)
    state = ApiState(settings, served, envelopes=ENVELOPES)
    _ = state.parsers  # a wrong name must stop the start, not the first request
    docs = not settings.disable_fastapi_docs
    app = FastAPI(
        title="Breadbox",
        version=__version__,
        description="An OpenAI-compatible LLM appliance.",
        lifespan=_lifespan,
        middleware=make_middleware(settings, state.metrics),
        exception_handlers=dict(HANDLERS),
        openapi_url="/openapi.json" if docs else None,
        docs_url=None,  # ours, in `page.reference`, need no internet
        redoc_url=None,
        # A redirect would drop the body or the key of many clients; the 404 names the right path instead.
        redirect_slashes=False,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    app.root_path = settings.root_path
    app.state.api = state
    routers = [router for router, is_wanted in ROUTERS if is_wanted(settings)]
    for router in routers:
        app.include_router(router)
    app.state.routes = tuple(route for router in routers for route in router.routes)
    app.state.route_paths = frozenset(getattr(route, "path", "") for router in routers for route in router.routes)
    install_openapi(app)
    return app


def make_app() -> FastAPI:
    """What gunicorn calls in each worker: settings as the supervisor rendered them."""
    return create_app(load_rendered())


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: ApiState = app.state.api
    async with AsyncExitStack() as stack:
        for model in state.models:
            await model.engine.start()
            stack.push_async_callback(model.engine.close)
        jobs = [state.drain.run(), state.keys.run(), *(model.adopt_engine_facts() for model in state.models)]
        tasks = [asyncio.create_task(job) for job in jobs]
        stack.push_async_callback(_cancel, tasks)
        # What was made at start lives for ever: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        yield


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
