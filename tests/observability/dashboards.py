"""The queries of dashboards: ours as the file has them, upstream's as its dashboard asks them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.observability.prometheus import GRAFANA

OURS: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "breadbox.json").read_text())
RATE_INTERVAL = "15s"

# The panels of vLLM's own example dashboard (http-surface.md §10.1), with its variable $model_name.
_M = '{model_name="$model_name"}'
_R = "[$__rate_interval]"


def _percentiles(name: str) -> list[str]:
    quantiles = [f"histogram_quantile({q}, sum by(le) (rate({name}_bucket{_M}{_R})))" for q in (0.99, 0.95, 0.9, 0.5)]
    return [*quantiles, f"rate({name}_sum{_M}{_R})\n/\nrate({name}_count{_M}{_R})"]


UPSTREAM = [
    *_percentiles("vllm:e2e_request_latency_seconds"),
    *_percentiles("vllm:inter_token_latency_seconds"),
    *_percentiles("vllm:request_time_per_output_token_seconds"),
    *_percentiles("vllm:time_to_first_token_seconds"),
    f"rate(vllm:prompt_tokens_total{_M}{_R})",
    f"rate(vllm:generation_tokens_total{_M}{_R})",
    f"vllm:num_requests_running{_M}",
    f"vllm:num_requests_waiting{_M}",
    f"vllm:kv_cache_usage_perc{_M}",
    f"sum by(le) (increase(vllm:request_prompt_tokens_bucket{_M}{_R}))",
    f"sum by(le) (increase(vllm:request_generation_tokens_bucket{_M}{_R}))",
    f"sum by(finished_reason) (increase(vllm:request_success_total{_M}{_R}))",
    f"rate(vllm:request_queue_time_seconds_sum{_M}{_R})",
    f"rate(vllm:request_prefill_time_seconds_sum{_M}{_R})",
    f"rate(vllm:request_decode_time_seconds_sum{_M}{_R})",
    f"rate(vllm:request_max_num_generation_tokens_sum{_M}{_R})",
]
# What the dashboards of older versions ask instead.
UPSTREAM_OLD = [
    *_percentiles("vllm:time_per_output_token_seconds"),
    f"vllm:gpu_cache_usage_perc{_M}",
    f"rate(vllm:gpu_prefix_cache_hits_total{_M}{_R}) / rate(vllm:gpu_prefix_cache_queries_total{_M}{_R})",
]


def panels(dashboard: dict[str, Any] = OURS) -> Iterator[dict[str, Any]]:
    """All panels but rows, also those inside collapsed rows."""
    for panel in dashboard["panels"]:
        yield from panels(panel) if panel.get("panels") else [panel] if panel["type"] != "row" else []


def queries_of(panel: dict[str, Any]) -> list[str]:
    """What a panel asks."""
    return [target["expr"] for target in panel["targets"]]


def filled(query: str, **variables: str) -> str:
    """A query as Grafana sends it; an unknown variable is an error."""
    values = {"__rate_interval": RATE_INTERVAL, "__range": "60s", **variables}
    text = re.sub(r"\$\{?(\w+)(?::\w+)?\}?", lambda match: values[match[1]], query)
    assert "$" not in text, text
    return text
