"""Plain ASGI middleware around every route: request ids, accounting, CORS, and errors that no handler caught.

`MIDDLEWARE` lists them from the outside in; behind them come the plugins of ``--middleware`` (whose errors are told
like any other), then those of `auth` and `load`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from appliance.api.auth import KeyMiddleware, KeyRing, get_route_path
from appliance.api.error_handlers import as_api_error, error_response, handle_client_gone
from appliance.api.load import LoadMiddleware
from appliance.api.middleware_plugins import load_plugins
from appliance.api.request_ids import HEADER, clean_request_id, make_request_id
from appliance.errors import InvalidRequestError
from appliance.metrics import ApiMetrics
from appliance.settings import Settings

logger = logging.getLogger(__name__)

QUIET_PATHS = frozenset({"/health", "/ping", "/version", "/livez", "/readyz", "/startupz", "/load", "/metrics"})
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


class AccessMiddleware:
    """Counts each request and logs one line when it ends; probes and scrapes are neither counted nor logged."""

    def __init__(self, app: ASGIApp, *, metrics: ApiMetrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Follows the request to the last byte of its answer."""
        if scope["type"] != _HTTP or get_route_path(scope) in QUIET_PATHS:
            return await self.app(scope, receive, send)
        started, status, size = time.perf_counter(), 500, 0

        async def count(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            return await self.app(scope, receive, count)
        finally:
            self._record(scope, status, size, time.perf_counter() - started)

    def _record(self, scope: Scope, status: int, size: int, duration_s: float) -> None:
        handler, method = get_handler(scope), scope["method"] if scope["method"] in _METHODS else "OTHER"
        self.metrics.requests.labels(handler, method, f"{status // 100}xx").inc()
        self.metrics.duration_s.labels(handler, method).observe(duration_s)
        self.metrics.response_bytes.labels(handler).observe(size)
        if scope["state"].get("client_gone"):
            self.metrics.disconnects.labels(handler).inc()
        declared = Headers(scope=scope).get("content-length", "0")
        self.metrics.request_bytes.labels(handler).observe(int(declared) if declared.isdecimal() else 0)
        request_id, job = scope["state"]["request_id"], scope["state"].get("job")
        line = "request_id=%s %s %s status=%d duration_s=%.3f bytes=%d%s"
        facts = f" {job.describe()}" if job else ""
        logger.info(line, request_id, method, handler, status, duration_s, size, facts)


_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


def get_handler(scope: Scope) -> str:
    """The route's template, never the raw path: labels and logs must stay bounded."""
    return str(getattr(scope.get("route"), "path", "none"))


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


def _cors(settings: Settings, metrics: ApiMetrics) -> Middleware | None:
    if not settings.allowed_origins:
        return None
    return Middleware(
        CorsMiddleware,
        allow_origins=settings.allowed_origins,
        allow_methods=settings.allowed_methods,
        allow_headers=settings.allowed_headers,
        allow_credentials=settings.allow_credentials,
        expose_headers=("x-request-id", "retry-after"),
    )


def _load(settings: Settings, metrics: ApiMetrics) -> Middleware | None:
    return Middleware(LoadMiddleware, metrics=metrics) if settings.enable_server_load_tracking else None


def _keys(settings: Settings, metrics: ApiMetrics) -> Middleware | None:
    keys = KeyRing(settings.api_key)
    return Middleware(KeyMiddleware, keys=keys) if keys else None


MIDDLEWARE: tuple[Callable[[Settings, ApiMetrics], Middleware | None], ...] = (
    lambda settings, metrics: Middleware(RequestIdMiddleware),
    lambda settings, metrics: Middleware(AccessMiddleware, metrics=metrics),
    _cors,
    lambda settings, metrics: Middleware(ErrorMiddleware),
)
INNER_MIDDLEWARE = (_keys, _load)


def make_middleware(settings: Settings, metrics: ApiMetrics) -> list[Middleware]:
    """The middleware that these settings ask for, outermost first. Raises ApplianceError for plugins that are none."""
    outer = [make(settings, metrics) for make in MIDDLEWARE]
    inner = [make(settings, metrics) for make in INNER_MIDDLEWARE]
    plugins = load_plugins(settings.middleware)
    if plugins:
        inner.insert(0, Middleware(ErrorMiddleware))  # a plugin sees a refused key as an answer, too
    made = [*outer, *plugins, *inner]
    return [middleware for middleware in made if middleware is not None]
