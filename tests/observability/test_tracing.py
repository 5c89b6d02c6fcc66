"""Spans as a collector receives them."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.api.conftest import MakeBox, make_box, text_side
from tests.api.harness import NAME

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from appliance.api.tracing import traces_url

__all__ = ["make_box", "text_side"]  # fixtures
# pragma: allowlist nextline secret
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """An OTLP collector that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.take(self.path, body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(values(resource.resource.attributes))
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]


def values(attributes: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever)
    thread.start()
    yield collector
    collector.server.shutdown()
    thread.join()
    collector.server.server_close()


async def test_a_span_a_request_in_the_callers_trace(make_box: MakeBox, collector: Collector) -> None:
    box = await make_box(otlp_traces_endpoint=collector.url)
    box.client.headers["traceparent"] = f"00-{TRACE}-{PARENT}-01"
    await box.chat(stream=True)
    await box.chat(temperature=9)
    await box.client.get("/health")
    await box.client.get("/metrics")
    provider(box.app).force_flush()
    good, bad = collector.spans
    assert (good.trace_id.hex(), good.parent_span_id.hex()) == (TRACE, PARENT)
    assert good.name == bad.name == "POST /v1/chat/completions"
    facts = values(good.attributes)
    assert facts["gen_ai.request.model"] == NAME
    assert (facts["gen_ai.usage.output_tokens"], facts["gen_ai.response.finish_reasons"]) == (4, "length")
    assert facts["http.response.status_code"] == 200
    assert facts["breadbox.request_id"]
    assert values(bad.attributes)["http.response.status_code"] == 400
    assert collector.resources[0]["service.name"] == "breadbox"


def provider(app: Any) -> Any:
    """The middleware's."""
    layer = app.middleware_stack
    while not hasattr(layer, "_provider"):
        layer = layer.app
    return layer._provider


async def test_a_collector_that_is_away_costs_nothing(make_box: MakeBox, caplog: pytest.LogCaptureFixture) -> None:
    box = await make_box(otlp_traces_endpoint="http://127.0.0.1:9")
    assert (await box.chat()).status_code == 200
    await asyncio.to_thread(provider(box.app).shutdown)


def test_the_path_may_be_left_out() -> None:
    assert traces_url("http://c:4318") == traces_url("http://c:4318/") == "http://c:4318/v1/traces"
    assert traces_url("http://c/other/v1/traces") == "http://c/other/v1/traces"
