"""The API side's metrics: one table, counted by the HTTP middleware. The engine counts everything about generation.

Under several API workers the values live in files that all workers share (prometheus_client's multiprocess mode,
switched on by PROMETHEUS_MULTIPROC_DIR before this module is imported), so any worker can answer a scrape for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from appliance.settings import prometheus_multiproc_dir

# The moment a series was made is of no use to anyone and doubles the text.
disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SIZE_BUCKETS = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)


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
    Row(Histogram, "http_request_size_bytes", "Declared size of request bodies.", ("handler",), _SIZE_BUCKETS),
    Row(Histogram, "http_response_size_bytes", "Size of answers, streams included.", ("handler",), _SIZE_BUCKETS),
    Row(Counter, "breadbox_client_disconnects", "Clients that left before their answer was complete.", ("handler",)),
    Row(Gauge, "breadbox_server_load", "Requests to the model in flight, over all API workers."),
)


class ApiMetrics:
    """The table's metrics, made once a process. ``registry`` holds this process's values."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made = {row.name: self._make(row) for row in TABLE}
        self.requests: Counter = made["http_requests"]
        self.duration_s: Histogram = made["http_request_duration_seconds"]
        self.request_bytes: Histogram = made["http_request_size_bytes"]
        self.response_bytes: Histogram = made["http_response_size_bytes"]
        self.disconnects: Counter = made["breadbox_client_disconnects"]
        self.load: Gauge = made["breadbox_server_load"]

    def _make(self, row: Row) -> Any:
        if row.kind is Histogram:
            return Histogram(row.name, row.help, row.labels, buckets=row.buckets, registry=self.registry)
        if row.kind is Gauge:
            # A dead worker's requests are gone with it: only living processes count.
            return Gauge(row.name, row.help, row.labels, multiprocess_mode="livesum", registry=self.registry)
        return Counter(row.name, row.help, row.labels, registry=self.registry)

    def render(self) -> str:
        """Text exposition over all API workers."""
        return generate_latest(self._collected()).decode()

    def server_load(self) -> int:
        """Requests in flight over all API workers."""
        return int(self._collected().get_sample_value("breadbox_server_load") or 0)

    def _collected(self) -> CollectorRegistry:
        if prometheus_multiproc_dir() is None:
            return self.registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return registry


def merge_expositions(texts: Iterable[str]) -> str:
    """Join text expositions so that each metric family appears once, as the format demands."""
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
    return "\n".join(lines) + "\n" if lines else ""
