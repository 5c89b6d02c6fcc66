"""OpenTelemetry traces: a span a request, in its caller's trace, sent to --otlp-traces-endpoint over HTTP.

Needs the packages of the extra `otel`, and is only imported where traces are asked for. Probes and scrapes have none.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from appliance import __version__
from appliance.api.access import get_handler, get_method
from appliance.api.request_record import RequestRecord, get_record

_PATH = "/v1/traces"
# Names of OpenTelemetry's conventions for generative models, and the facts of a request's log line.
_ATTRIBUTES = {
    "gen_ai.request.model": "model",
    "gen_ai.response.id": "id",
    "gen_ai.usage.input_tokens": "prompt_tokens",
    "gen_ai.usage.output_tokens": "output_tokens",
    "gen_ai.response.finish_reasons": "finish",
    "gen_ai.server.time_to_first_token": "ttft_s",
    "gen_ai.server.time_per_output_token": "itl_s",
    "breadbox.cached_tokens": "cached_tokens",
    "breadbox.resumes": "resumes",
}


class TracingMiddleware:
    """Behind the access middleware, whose record tells what a request did."""

    def __init__(self, app: ASGIApp, *, endpoint: str) -> None:
        self.app = app
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "breadbox", "service.version": __version__})
        )
        self._provider.add_span_processor(BatchSpanProcessor(_make_exporter(endpoint)))
        self._tracer = self._provider.get_tracer("breadbox", __version__)
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Requests get a span; at the end of the application what was not sent yet is."""
        record = get_record()
        if scope["type"] == "http" and record is not None:
            return await self._trace(scope, receive, send, record)
        try:
            return await self.app(scope, receive, send)
        finally:
            if scope["type"] == "lifespan":
                self._provider.shutdown()

    async def _trace(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> None:
        status = 500

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        context = self._propagator.extract(dict(Headers(scope=scope).items()))
        with self._tracer.start_as_current_span(get_method(scope), context, kind=SpanKind.SERVER) as span:
            try:
                await self.app(scope, receive, watch)
            finally:
                _describe(span, scope, status, record)


def _describe(span: Span, scope: Scope, status: int, record: RequestRecord) -> None:
    handler, facts = get_handler(scope), record.facts()
    span.update_name(f"{get_method(scope)} {handler}")
    attributes: dict[str, Any] = {
        name: facts[fact] for name, fact in _ATTRIBUTES.items() if facts.get(fact) is not None
    }
    attributes |= {
        "http.request.method": get_method(scope),
        "http.route": handler,
        "http.response.status_code": status,
        "breadbox.request_id": record.request_id,
    }
    span.set_attributes(attributes)
    if status >= 500:
        span.set_status(StatusCode.ERROR)


def _make_exporter(endpoint: str) -> OTLPSpanExporter:
    # A collector that is away must not hold up the box's end.
    return OTLPSpanExporter(endpoint=traces_url(endpoint), timeout=3)


def traces_url(endpoint: str) -> str:
    """The collector's URL for traces; its address alone is enough."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _PATH
