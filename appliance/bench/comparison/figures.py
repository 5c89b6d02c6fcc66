"""The figures that a load is judged by, and how each is read off its phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from appliance.bench.summary import Summary

PERCENTS = (50.0, 95.0, 99.0)
Summaries = Mapping[str, Summary]  # by phase


@dataclass(frozen=True)
class Figure:
    """``is_rate`` means that more is better."""

    key: str
    label: str
    is_rate: bool
    read: Callable[[Summaries], float]


def _rate(key: str, label: str, read: Callable[[Summary], float], phase: str = "all") -> Figure:
    return Figure(key, label, True, lambda phases: read(phases[phase]))


def _time(key: str, label: str, metric: str, percent: float, phase: str = "all") -> Figure:
    return Figure(key, label, False, lambda phases: phases[phase].metrics[metric].percentiles[percent])


def _prefill_rate(summary: Summary) -> float:
    ttft_ms = summary.metrics["ttft"].percentiles[50.0]
    return 1000 * summary.num_prompt_tokens / max(1, summary.num_completed) / ttft_ms if ttft_ms else 0.0


_OUTPUT = _rate("output_tok_s", "output tok/s", lambda summary: summary.output_throughput)
_TTFT = _time("ttft_p50_ms", "TTFT p50 ms", "ttft", 50.0)
_TTFT_P99 = _time("ttft_p99_ms", "TTFT p99 ms", "ttft", 99.0)
_TPOT = _time("tpot_p50_ms", "TPOT p50 ms", "tpot", 50.0)
_ITL_P99 = _time("itl_p99_ms", "ITL p99 ms", "itl", 99.0)
_METRIC_LABELS = {"ttft": "TTFT", "itl": "ITL", "e2el": "E2E"}

_FIXED: dict[str, tuple[Figure, ...]] = {
    "L1": (_OUTPUT, _TTFT, _TPOT, _ITL_P99),
    "L2": (_OUTPUT, _TTFT, _TTFT_P99, _TPOT, _ITL_P99),
    "L3": (_OUTPUT, _TTFT, _TTFT_P99, _TPOT, _ITL_P99),
    "L4": (_TTFT, _rate("prefill_tok_s", "prefill tok/s", _prefill_rate), _TPOT),
    "L5": (
        _time("ttft_cold_ms", "TTFT cold ms", "ttft", 50.0, "cold"),
        _time("ttft_warm_ms", "TTFT warm ms", "ttft", 50.0, "warm"),
        _time("ttft_distinct_ms", "TTFT p50 ms, 4 distinct", "ttft", 50.0, "distinct"),
        _time("ttft_shared_ms", "TTFT p50 ms, 4 shared", "ttft", 50.0, "shared"),
        _rate("shared_req_s", "req/s, 4 shared", lambda summary: summary.request_throughput, "shared"),
    ),
}
_AT_A_RATE: tuple[Figure, ...] = (
    *(
        _time(f"{metric}_p{percent:g}_ms", f"{label} p{percent:g} ms", metric, percent)
        for metric, label in _METRIC_LABELS.items()
        for percent in PERCENTS
    ),
    _rate("goodput_req_s", "goodput req/s", lambda summary: summary.request_goodput or 0.0),
    _OUTPUT,
)


def figures_of(load: str) -> tuple[Figure, ...]:
    """The figures of a load, most important first."""
    return _FIXED.get(load, _AT_A_RATE)
