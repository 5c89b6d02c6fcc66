"""Follows each request to the last byte of its answer: counts it, and logs one line when it ends.

Probes and scrapes are neither counted nor logged.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from appliance.api.auth import get_route_path
from appliance.api.body_writer import get_body_writer
from appliance.api.request_record import RequestRecord, recording
from appliance.logs import log_facts
from appliance.metrics import DRAINING, QUEUE_FULL, REJECTIONS, ApiMetrics

logger = logging.getLogger(__name__)

QUIET_PATHS = frozenset({"/health", "/ping", "/version", "/livez", "/readyz", "/startupz", "/load", "/metrics"})
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


class AccessMiddleware:
    """``logs_params``: another line when a request begins, with what it asks for.

    ``lets_bodies_pass``: no middleware cares for the body of an answer, so that a stream may go past all of them.
    """

    def __init__(
        self, app: ASGIApp, *, metrics: ApiMetrics, logs_params: bool = False, lets_bodies_pass: bool = False
    ) -> None:
        self.app = app
        self.metrics = metrics
        self._logs_params = logs_params
        self._lets_bodies_pass = lets_bodies_pass

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on as it is."""
        if scope["type"] != "http" or get_route_path(scope) in QUIET_PATHS:
            return await self.app(scope, receive, send)
        status, size, state = 500, 0, scope.setdefault("state", {})

        async def count(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        body_writer = get_body_writer(scope) if self._lets_bodies_pass else None
        with recording(RequestRecord(state, self._logs_params, receive, body_writer)) as record:
            try:
                return await self.app(scope, receive, count)
            finally:
                duration_s = time.monotonic() - record.started_s
                size += record.num_written_bytes
                self._count(scope, status, size, duration_s, record)
                self._log(scope, status, size, duration_s, record)

    def _count(self, scope: Scope, status: int, size: int, duration_s: float, record: RequestRecord) -> None:
        metrics, handler, method = self.metrics, get_handler(scope), get_method(scope)
        metrics.requests.labels(handler, method, f"{status // 100}xx").inc()
        metrics.duration_s.labels(handler, method).observe(duration_s)
        metrics.fine_duration_s.observe(duration_s)
        metrics.response_bytes.labels(handler).observe(size)
        declared = Headers(scope=scope).get("content-length", "0")
        metrics.request_bytes.labels(handler).observe(int(declared) if declared.isdecimal() else 0)
        if scope["state"].get("client_gone"):
            metrics.disconnects.labels(handler).inc()
        if status in REJECTIONS:
            metrics.rejected.labels(get_rejection(scope, status)).inc()
        if "queue_limit" in scope["state"]:
            metrics.admission_rejections.labels(record.model, scope["state"]["queue_limit"]).inc()

    @staticmethod
    def _log(scope: Scope, status: int, size: int, duration_s: float, record: RequestRecord) -> None:
        facts: dict[str, Any] = {
            "request_id": record.request_id,
            "method": get_method(scope),
            "route": get_handler(scope),
            "status": status,
            "duration_s": round(duration_s, 4),
            "bytes": size,
            "key": scope["state"].get("key_name"),
            "client_gone": scope["state"].get("client_gone"),
            **record.facts(),
        }
        log_facts(logger, logging.INFO, "request", facts)


def get_handler(scope: Scope) -> str:
    """The route's template, never the raw path: labels and logs must stay bounded."""
    return str(getattr(scope.get("route"), "path", "none"))


def get_method(scope: Scope) -> str:
    """The method, if it is one that there is."""
    method = str(scope["method"])
    return method if method in _METHODS else "OTHER"


def get_rejection(scope: Scope, status: int) -> str:
    """Why a request was refused."""
    if scope["state"].get("error_code") == QUEUE_FULL:
        return QUEUE_FULL
    if status == 503 and scope["app"].state.api.drain.is_on:
        return DRAINING
    return REJECTIONS[status]
