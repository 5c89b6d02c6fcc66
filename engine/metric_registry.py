"""What makes, collects and prints an engine's metrics. Which metrics there are is `engine.metrics`' business."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from engine.kept_counts import KeptCounts


class MetricRegistry:
    """All metrics of one engine, with those of earlier processes in the counts.

    ``aliases`` maps names (as in ``# TYPE``) to other names under which the same values are shown a second time.
    """

    def __init__(self, kept: KeptCounts, aliases: Mapping[str, str] | None = None) -> None:
        self.collectors = CollectorRegistry()
        self._kept = kept
        self._aliases = dict(aliases or {})
        self._lock = threading.Lock()  # a scrape and the keeping may meet

    def render(self, *, openmetrics: bool = False) -> str:
        """Text exposition; what it shows is kept first."""
        families = _Families(self.keep())
        if openmetrics:
            # The colons of vllm:… are part of the names, whatever this library thinks of them.
            return bytes(generate_openmetrics(families, escaping=ALLOWUTF8)).decode()  # type: ignore[no-untyped-call]
        return generate_latest(families).decode()

    def keep(self) -> list[Metric]:
        """Write the counts down; returns all families as they are now."""
        with self._lock:
            families = self._collect()
            self._kept.write(families)
        return families + [_renamed(family, self._aliases[family.name]) for family in self._renamable(families)]

    def _renamable(self, families: list[Metric]) -> list[Metric]:
        return [family for family in families if family.name in self._aliases]

    def _collect(self) -> list[Metric]:
        families = list(self.collectors.collect())
        for family in families:
            # When a series was made interests nobody and doubles the text.
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            self._kept.add_base(family)
        return families


@dataclass(frozen=True)
class _Families(Collector):
    families: list[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _renamed(family: Metric, name: str) -> Metric:
    renamed = copy.copy(family)
    renamed.samples = [sample._replace(name=name + sample.name.removeprefix(family.name)) for sample in family.samples]
    renamed.documentation = f"{family.documentation} Now {family.name}."
    renamed.name = name
    return renamed


class MetricMaker:
    """Makes metrics with an engine's labels and returns the labelled child, so that recording looks nothing up."""

    def __init__(
        self,
        registry: CollectorRegistry,
        labels: Mapping[str, str],
        buckets: Mapping[str, Sequence[float]],
        prefix: str = "vllm:",
    ) -> None:
        self._registry = registry
        self._labels = dict(labels)
        self._buckets = buckets
        self._prefix = prefix

    def gauge(self, name: str, meaning: str) -> Gauge:
        """A gauge, 0 until it is set."""
        return self._gauge(name, meaning, self._labels).labels(**self._labels)

    def gauges(self, name: str, meaning: str, label: str, values: Iterable[str]) -> dict[str, Gauge]:
        """One gauge for each value of a label."""
        gauge = self._gauge(name, meaning, (*self._labels, label))
        return {value: gauge.labels(**self._labels, **{label: value}) for value in values}

    def info(self, name: str, meaning: str, facts: Mapping[str, str]) -> None:
        """A gauge that is 1 and carries facts as labels."""
        labels = self._labels | dict(facts)
        self._gauge(name, meaning, labels).labels(**labels).set(1)

    def counter(self, name: str, meaning: str) -> Counter:
        """A counter; it is scraped as ``<name>_total``."""
        return Counter(self._prefix + name, meaning, self._labels, registry=self._registry).labels(**self._labels)

    def counters(self, name: str, meaning: str, label: str, values: Iterable[str]) -> dict[str, Counter]:
        """One counter for each value of a label."""
        counter = Counter(self._prefix + name, meaning, (*self._labels, label), registry=self._registry)
        return {value: counter.labels(**self._labels, **{label: value}) for value in values}

    def histogram(self, name: str, meaning: str) -> Histogram:
        """A histogram with the buckets that are known for its name."""
        histogram = Histogram(
            self._prefix + name, meaning, self._labels, registry=self._registry, buckets=self._buckets[name]
        )
        return histogram.labels(**self._labels)

    def _gauge(self, name: str, meaning: str, labels: Iterable[str]) -> Gauge:
        return Gauge(self._prefix + name, meaning, tuple(labels), registry=self._registry)
