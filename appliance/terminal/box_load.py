"""What a box is doing, as figures: from its report of readiness and from two scrapes of its metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from appliance.doctor.samples import Samples

TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"
QUANTILES = (0.5, 0.95, 0.99)
_INFINITE = math.inf


@dataclass(frozen=True)
class ModelLoad:
    """One model's figures; None where its engine is away or nothing happened. Quantiles as `QUANTILES`."""

    name: str
    phase: str
    percent: float
    is_ready: bool
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    output_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    prefix_hit_rate: float | None = None
    preemptions: float | None = None
    ttft_s: tuple[float | None, ...] = (None, None, None)
    itl_s: tuple[float | None, ...] = (None, None, None)


@dataclass(frozen=True)
class BoxLoad:
    """The box as a whole. ``status``: ready, not ready, draining, starting or away."""

    url: str
    status: str
    models: tuple[ModelLoad, ...] = ()
    version: str = ""
    num_restarts: float = 0.0
    num_rejected: float = 0.0


@dataclass(frozen=True)
class Scrape:
    """The metrics at a moment, in seconds of a clock that never goes back."""

    at_s: float
    samples: Samples


def compute_load(url: str, report: dict[str, Any], now: Scrape, last: Scrape, first: Scrape) -> BoxLoad:
    """Gauges as of `now`, rates since `last`, quantiles and shares since `first`."""
    return BoxLoad(
        url,
        str(report.get("status", "starting")),
        tuple(_model_load(entry, now, last, first) for entry in report.get("models", ())),
        next((labels.get("version", "") for labels in now.samples.labels_of("breadbox:build_info")), ""),
        now.samples.total("breadbox:restarts_total"),
        now.samples.total("breadbox:rejected_requests_total"),
    )


def _model_load(entry: dict[str, Any], now: Scrape, last: Scrape, first: Scrape) -> ModelLoad:
    name = str(entry["model"])
    head = (name, str(entry.get("phase", "")), float(entry.get("percent", 0.0)), bool(entry.get("is_ready")))
    current = of_model(now.samples, name)
    if not current.has("vllm:num_requests_running"):
        return ModelLoad(*head)
    recent, window = (current.since(of_model(scrape.samples, name)) for scrape in (last, first))
    seconds = max(now.at_s - last.at_s, 1e-9)
    return ModelLoad(
        *head,
        running=current.total("vllm:num_requests_running"),
        waiting=current.total("vllm:num_requests_waiting"),
        kv_usage=current.total("vllm:kv_cache_usage_perc"),
        output_tokens_per_s=recent.total("vllm:generation_tokens_total") / seconds,
        prompt_tokens_per_s=recent.total("vllm:prompt_tokens_total") / seconds,
        prefix_hit_rate=_share(window, "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
        preemptions=current.total("vllm:num_preemptions_total"),
        ttft_s=tuple(quantile(window, TTFT, q) for q in QUANTILES),
        itl_s=tuple(quantile(window, ITL, q) for q in QUANTILES),
    )


def of_model(samples: Samples, name: str) -> Samples:
    """Those that are of this model."""
    label = ("model_name", name)
    return Samples({key: value for key, value in samples.values.items() if label in key[1]})


def _share(samples: Samples, part: str, whole: str) -> float | None:
    total = samples.total(whole)
    return samples.total(part) / total if total else None


def quantile(samples: Samples, histogram: str, q: float) -> float | None:
    """Interpolated in its bucket, as Prometheus does it; None without observations."""
    counts = sorted((float(bound), count) for bound, count in samples.by_label(f"{histogram}_bucket", "le").items())
    rank = q * counts[-1][1] if counts else 0.0
    lower = below = 0.0
    for bound, count in counts:
        if rank and count >= rank:
            return lower if bound == _INFINITE else lower + (bound - lower) * (rank - below) / max(count - below, 1e-9)
        lower, below = bound, count
    return None
