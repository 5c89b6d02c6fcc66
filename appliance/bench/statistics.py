"""Mean, median, percentiles and spread of measured values, without numpy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], percent: float) -> float:
    """Between the two nearest values by their distance, as numpy's default. ``values`` are sorted; not empty."""
    position = (len(values) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (position - below)


@dataclass(frozen=True)
class Distribution:
    """Facts about some values; all zero where there are none."""

    count: int
    mean: float
    median: float
    std: float
    percentiles: Mapping[float, float]


def describe(values: Iterable[float], percents: Sequence[float]) -> Distribution:
    """Summarise `values` (in any order)."""
    ordered = sorted(values)
    if not ordered:
        return Distribution(0, 0.0, 0.0, 0.0, dict.fromkeys(percents, 0.0))
    return Distribution(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        median=percentile(ordered, 50),
        std=statistics.pstdev(ordered),
        percentiles={percent: percentile(ordered, percent) for percent in percents},
    )


@dataclass(frozen=True)
class Spread:
    """A figure over several repetitions."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread | None:
    """Median with its range; None without values."""
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values))


def percent_label(percent: float) -> str:
    """99.0 → ``99``, 99.9 → ``99.9``."""
    return f"{percent:g}"
