"""The API side's metrics: one table, counted by the HTTP middleware. The engine counts everything about generation.

Under several API workers the values live in files that all workers share (prometheus_client's multiprocess mode,
switched on by PROMETHEUS_MULTIPROC_DIR before this module is imported), so any worker can answer a scrape for all,
and what a worker counted stays when it is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from appliance.box_facts import BoxFacts
from appliance.settings import Settings, prometheus_multiproc_dir

# The moment a series was made is of no use to anyone and doubles the text.
disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
REJECTIONS = {
    400: "invalid",
    401: "unauthorized",
    403: "unauthorized",
    404: "not_found",
    405: "not_found",
    413: "too_large",
    422: "invalid",
    429: "rate_limited",
    501: "not_implemented",
    503: "unavailable",
}
DRAINING = "draining"
QUEUE_FULL = "queue_full"  # also the code of these errors: their status says too little
QUEUE_LIMITS = ("max_num_queued_reqs", "max_num_queued_tokens")
_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_FINE_LATENCY_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.75),
    *(1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 20, 30, 60, 120, 300),
)
_SIZE_BUCKETS = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
_CHOICES = (1, 2, 5, 10, 20)
_TOOL_LABELS = ("model_name", "mode", "outcome", "request_type")
_TOOL_OUTCOMES = ("no_tool_call", "tool_call")  # by bool, as the modes
_TOOL_MODES = ("non_streaming", "streaming")
_REQUEST_TYPES = ("chat_completions", "responses", "other")


@dataclass(frozen=True, slots=True)
class Row:
    """One metric: kind, name as scraped (counters get ``_total``), what it means, labels, buckets."""

    kind: type[Counter] | type[Gauge] | type[Histogram]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


TABLE = (
    Row(Counter, "http_requests", "HTTP requests by class of status.", ("handler", "method", "status")),
    Row(Histogram, "http_request_duration_seconds", "Until the last byte.", ("handler", "method"), _LATENCY_BUCKETS),
    Row(Histogram, "http_request_duration_highr_seconds", "Until the last byte.", (), _FINE_LATENCY_BUCKETS),
    Row(Histogram, "http_request_size_bytes", "Declared size of request bodies.", ("handler",), _SIZE_BUCKETS),
    Row(Histogram, "http_response_size_bytes", "Size of answers, streams included.", ("handler",), _SIZE_BUCKETS),
    Row(Histogram, "vllm:request_params_n", "Choices that a request asked for.", ("model_name", "engine"), _CHOICES),
    Row(Counter, "vllm:tool_call_parser_invocations", "Choices that were searched for tool calls.", _TOOL_LABELS),
    Row(Counter, "vllm:admission_rejections", "Requests refused by a full queue.", ("model_name", "reason")),
    Row(Counter, "breadbox:rejected_requests", "Requests that were refused, by reason.", ("reason",)),
    Row(Counter, "breadbox:resumed_requests", "Times a request went on after the engine was lost.", ("model_name",)),
    Row(Counter, "breadbox:client_disconnects", "Clients that left before their answer was complete.", ("handler",)),
    Row(Gauge, "breadbox:server_load", "Requests to the model in flight, over all API workers."),
)


class ApiMetrics:
    """The table's metrics, made once a process. ``registry`` holds this process's values."""

    def __init__(self, settings: Settings | None = None, model_names: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        settings = settings or Settings()
        self._facts = BoxFacts(settings)
        made = {row.name: self._make(row) for row in TABLE}
        self.requests: Counter = made["http_requests"]
        self.duration_s: Histogram = made["http_request_duration_seconds"]
        self.fine_duration_s: Histogram = made["http_request_duration_highr_seconds"]
        self.request_bytes: Histogram = made["http_request_size_bytes"]
        self.response_bytes: Histogram = made["http_response_size_bytes"]
        self.num_choices: Histogram = made["vllm:request_params_n"]
        self._tool_calls: Counter = made["vllm:tool_call_parser_invocations"]
        self.admission_rejections: Counter = made["vllm:admission_rejections"]
        self.rejected: Counter = made["breadbox:rejected_requests"]
        self.resumed: Counter = made["breadbox:resumed_requests"]
        self.disconnects: Counter = made["breadbox:client_disconnects"]
        self.load: Gauge = made["breadbox:server_load"]
        self._start_with_zero(list(model_names), has_tools=settings.tool_call_parser is not None)

    def _make(self, row: Row) -> Any:
        if row.kind is Histogram:
            return Histogram(row.name, row.help, row.labels, buckets=row.buckets, registry=self.registry)
        if row.kind is Gauge:
            # A dead worker's requests are gone with it: only living processes count.
            return Gauge(row.name, row.help, row.labels, multiprocess_mode="livesum", registry=self.registry)
        return Counter(row.name, row.help, row.labels, registry=self.registry)

    def _start_with_zero(self, model_names: list[str], *, has_tools: bool) -> None:
        """Make the series that are known, so that rate() sees the first increase."""
        for reason in (*REJECTIONS.values(), DRAINING, QUEUE_FULL):
            self.rejected.labels(reason)
        for name in model_names:
            for limit in QUEUE_LIMITS:
                self.admission_rejections.labels(name, limit)
            self.num_choices.labels(name, "0")
            self.resumed.labels(name)
        if has_tools:
            for labels in product(model_names, _TOOL_MODES, _TOOL_OUTCOMES, _REQUEST_TYPES):
                self._tool_calls.labels(*labels)

    def tool_call_counter(self, model_name: str, request_type: str, *, is_streamed: bool) -> Callable[[bool], None]:
        """What counts a request's choices, once each, by whether there were tool calls in it."""

        def count(has_calls: bool) -> None:
            self._tool_calls.labels(model_name, _TOOL_MODES[is_streamed], _TOOL_OUTCOMES[has_calls], request_type).inc()

        return count

    def render(self, engines: Mapping[str, bool] | None = None, *, openmetrics: bool = False) -> str:
        """Text exposition over all API workers, and of what is known of the box. `engines`: which models' are there."""
        families = _Families([*self._collected().collect(), *self._facts.collect(), _readiness(engines or {})])
        if openmetrics:
            # The colons of vllm:… are part of the names, whatever this library thinks of them.
            return bytes(generate_openmetrics(families, escaping=ALLOWUTF8)).decode()  # type: ignore[no-untyped-call]
        return generate_latest(families).decode()

    def server_load(self) -> int:
        """Requests in flight over all API workers."""
        return int(self._collected().get_sample_value("breadbox:server_load") or 0)

    def _collected(self) -> CollectorRegistry:
        if prometheus_multiproc_dir() is None:
            return self.registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return registry


@dataclass(frozen=True)
class _Families(Collector):
    families: list[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _readiness(engines: Mapping[str, bool]) -> Metric:
    family = GaugeMetricFamily("breadbox:engine_ready", "1 where the model's engine answers.", labels=["model_name"])
    for name, is_there in engines.items():
        family.add_metric([name], is_there)
    return family


def merge_expositions(texts: Iterable[str], *, openmetrics: bool = False) -> str:
    """Join text expositions so that each metric family appears once, as the format demands.

    Without one, not even OpenMetrics' end mark is left.
    """
    families: dict[str, dict[str, list[str]]] = {}
    for text in texts:
        family: dict[str, list[str]] = {"head": [], "samples": []}
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = families.setdefault(line.split(" ", 3)[2], {"head": [], "samples": []})
                if line.split(" ", 2)[1] not in {head.split(" ", 2)[1] for head in family["head"]}:
                    family["head"].append(line)
            elif line and not line.startswith("#"):
                family["samples"].append(line)
    lines = [line for family in families.values() for line in (*family["head"], *family["samples"])]
    return "\n".join([*lines, *(["# EOF"] if openmetrics else [])]) + "\n" if lines else ""
