"""The metrics of one scrape, or of the time between two, and what can be computed from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Key = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Samples:
    """Values by name and labels."""

    values: Mapping[Key, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Samples:
        """Read Prometheus' text exposition. Raises ValueError."""
        return cls(
            {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
        )

    def since(self, before: Samples) -> Samples:
        """How much each value has grown; a counter that began again counts from 0."""
        grown = {}
        for key, value in self.values.items():
            start = before.values.get(key, 0.0)
            grown[key] = value - start if value >= start else value
        return Samples(grown)

    def has(self, name: str) -> bool:
        """Whether there is any series of that name."""
        return any(found == name for found, _ in self.values)

    def total(self, name: str, **labels: str) -> float:
        """The sum of the series of that name with these labels; 0 where there are none."""
        wanted = set(labels.items())
        return sum(value for (found, pairs), value in self.values.items() if found == name and wanted <= pairs)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Sums for each value of a label."""
        sums: dict[str, float] = {}
        for (found, pairs), value in self.values.items():
            if found == name and label in (own := dict(pairs)):
                sums[own[label]] = sums.get(own[label], 0.0) + value
        return sums

    def labels_of(self, name: str) -> list[dict[str, str]]:
        """The labels of each series of that name."""
        return [dict(pairs) for found, pairs in self.values if found == name]

    def mean(self, histogram: str) -> float:
        """Of a histogram's observations; 0 without any."""
        count = self.total(f"{histogram}_count")
        return self.total(f"{histogram}_sum") / count if count else 0.0

    def quantile(self, histogram: str, q: float) -> float:
        """The upper bound of the bucket that holds it; 0 without observations, the last finite bound at most."""
        counts: dict[float, float] = {}
        for bound, count in self.by_label(f"{histogram}_bucket", "le").items():
            counts[float(bound)] = count
        rank = q * counts.get(math.inf, 0.0)
        bounds = sorted(bound for bound in counts if bound < math.inf)
        if not rank or not bounds:
            return 0.0
        return next((bound for bound in bounds if counts[bound] >= rank), bounds[-1])
