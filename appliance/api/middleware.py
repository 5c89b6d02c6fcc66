"""Plain ASGI middleware around every route: request ids, CORS, and errors that no handler caught.

`MIDDLEWARE` lists them from the outside in; behind them come the plugins of ``--middleware`` (whose errors are told
like any other), then those of `auth` and `load`. Counting and logging are `access`'s.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from appliance.api.access import AccessMiddleware
from appliance.api.auth import KeyMiddleware
from appliance.api.error_handlers import as_api_error, error_response, handle_client_gone
from appliance.api.load import LoadMiddleware
from appliance.api.middleware_plugins import load_plugins
from appliance.api.rate_limits import HEADERS as RATE_LIMIT_HEADERS
from appliance.api.rate_limits import RateLimitMiddleware
from appliance.api.request_ids import HEADER, clean_request_id, make_request_id
from appliance.errors import InvalidRequestError
from appliance.metrics import ApiMetrics
from appliance.settings import Settings

_HTTP = "http"


class RequestIdMiddleware:
    """Gives every request an id, the client's if it is clean, and every answer the header that tells it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Puts ``request_id`` into the request's state; a route may replace it before it answers."""
        if scope["type"] != _HTTP:
            return await self.app(scope, receive, send)
        state = scope.setdefault("state", {})
        state["request_id"] = clean_request_id(Headers(scope=scope).get("x-request-id")) or make_request_id()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER, state["request_id"].encode())]
            await send(message)

        return await self.app(scope, receive, send_with_id)


class ErrorMiddleware:
    """Turns whatever the routes and the inner middleware raise into the envelope, inside CORS and request id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """After the first byte there is nothing left to say: the error goes up and the connection is cut."""
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            started |= message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception as error:
            if started or scope["type"] != _HTTP:
                raise
            await (await _respond(Request(scope), error))(scope, receive, send)


async def _respond(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return await handle_client_gone(request, error)
    return error_response(as_api_error(error), request.scope)


class CorsMiddleware(CORSMiddleware):
    """Starlette's CORS, with a refused preflight in our envelope."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """200, or 400 without Allow-Origin where the origin is not allowed."""
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        refused = error_response(InvalidRequestError(bytes(response.body).decode()))
        headers = MutableHeaders(raw=refused.raw_headers)
        for name, value in response.headers.items():
            if name not in headers:
                headers[name] = value
        return refused


def _access(settings: Settings, metrics: ApiMetrics) -> Middleware:
    has_plugins = bool(settings.middleware)  # which may look at every part of an answer, or change it
    return Middleware(
        AccessMiddleware,
        metrics=metrics,
        logs_params=settings.enable_log_requests,
        lets_bodies_pass=not has_plugins,
    )


def _tracing(settings: Settings, metrics: ApiMetrics) -> Middleware | None:
    if settings.otlp_traces_endpoint is None:
        return None
    from appliance.api.tracing import TracingMiddleware  # needs packages that not everybody has

    return Middleware(TracingMiddleware, endpoint=settings.otlp_traces_endpoint)


def _cors(settings: Settings, metrics: ApiMetrics) -> Middleware | None:
    if not settings.allowed_origins:
        return None
    return Middleware(
        CorsMiddleware,
        allow_origins=settings.allowed_origins,
        allow_methods=settings.allowed_methods,
        allow_headers=settings.allowed_headers,
        allow_credentials=settings.allow_credentials,
        expose_headers=("x-request-id", "retry-after", *RATE_LIMIT_HEADERS),
    )


def _load(settings: Settings, metrics: ApiMetrics) -> Middleware | None:
    return Middleware(LoadMiddleware, metrics=metrics) if settings.enable_server_load_tracking else None


def _keys(settings: Settings, metrics: ApiMetrics) -> Middleware | None:
    return Middleware(KeyMiddleware) if settings.api_key or settings.api_key_file else None


def _limits(settings: Settings, metrics: ApiMetrics) -> Middleware | None:
    return Middleware(RateLimitMiddleware) if settings.api_key_file else None


MIDDLEWARE: tuple[Callable[[Settings, ApiMetrics], Middleware | None], ...] = (
    _access,
    lambda settings, metrics: Middleware(RequestIdMiddleware),
    _tracing,
    _cors,
    lambda settings, metrics: Middleware(ErrorMiddleware),
)
INNER_MIDDLEWARE = (_keys, _limits, _load)


def make_middleware(settings: Settings, metrics: ApiMetrics) -> list[Middleware]:
    """The middleware that these settings ask for, outermost first. Raises ApplianceError for plugins that are none."""
    outer = [make(settings, metrics) for make in MIDDLEWARE]
    inner = [make(settings, metrics) for make in INNER_MIDDLEWARE]
    plugins = load_plugins(settings.middleware)
    if plugins:
        inner.insert(0, Middleware(ErrorMiddleware))  # a plugin sees a refused key as an answer, too
    made = [*outer, *plugins, *inner]
    return [middleware for middleware in made if middleware is not None]
