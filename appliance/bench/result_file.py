"""What a run leaves behind as JSON, under the keys that `vllm bench serve` uses, so that its scripts read ours."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.bench.load import LoadResult
from appliance.bench.speculation import SpeculationStats
from appliance.bench.statistics import percent_label
from appliance.bench.summary import Summary
from appliance.errors import SettingsError


@dataclass(frozen=True)
class RunFacts:
    """What a run was."""

    backend: str
    model: str
    tokenizer: str | None
    num_prompts: int
    request_rate: float
    burstiness: float
    max_concurrency: int | None
    seed: int
    label: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def make_record(
    facts: RunFacts, summary: Summary, metrics: Sequence[str], speculation: SpeculationStats | None
) -> dict[str, Any]:
    """Everything but the single requests."""
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": facts.backend,
        "backend": facts.backend,
        "label": facts.label,
        "model_id": facts.model,
        "tokenizer_id": facts.tokenizer,
        "num_prompts": facts.num_prompts,
        "seed": facts.seed,
        **facts.metadata,
        "request_rate": "inf" if math.isinf(facts.request_rate) else facts.request_rate,
        "burstiness": facts.burstiness,
        "max_concurrency": facts.max_concurrency,
        **_counts(summary),
        **_metric_fields(summary, metrics),
        **(_speculation_fields(speculation) if speculation else {}),
    }


def _counts(summary: Summary) -> dict[str, Any]:
    return {
        "duration": summary.duration_s,
        "completed": summary.num_completed,
        "failed": summary.num_failed,
        "total_input_tokens": summary.num_prompt_tokens,
        "total_output_tokens": summary.num_output_tokens,
        "total_cached_tokens": summary.num_cached_tokens,
        "request_throughput": summary.request_throughput,
        "request_goodput": summary.request_goodput,
        "output_throughput": summary.output_throughput,
        "total_token_throughput": summary.total_throughput,
        "max_output_tokens_per_s": summary.peak_output_throughput,
        "max_concurrent_requests": summary.peak_concurrency,
        "tokens_per_chunk": summary.tokens_per_chunk,
        "failures": dict(summary.errors),
    }


def _metric_fields(summary: Summary, metrics: Sequence[str]) -> dict[str, float]:
    fields: dict[str, float] = {}
    for name in metrics:
        values = summary.metrics[name]
        fields |= {f"mean_{name}_ms": values.mean, f"median_{name}_ms": values.median, f"std_{name}_ms": values.std}
        fields |= {f"p{percent_label(percent)}_{name}_ms": value for percent, value in values.percentiles.items()}
    return fields


def _speculation_fields(stats: SpeculationStats) -> dict[str, Any]:
    return {
        "spec_decode_acceptance_rate": 100 * stats.acceptance_rate,
        "spec_decode_acceptance_length": stats.acceptance_length,
        "spec_decode_num_drafts": stats.num_drafts,
        "spec_decode_draft_tokens": stats.num_draft_tokens,
        "spec_decode_accepted_tokens": stats.num_accepted_tokens,
        "spec_decode_per_position_acceptance_rates": stats.position_rates,
    }


def make_details(load: LoadResult) -> dict[str, Any]:
    """The single requests, as parallel lists; start times are seconds from the start of the load."""
    results = load.results
    return {
        "input_lens": [result.num_prompt_tokens for result in results],
        "output_lens": [result.num_output_tokens for result in results],
        "cached_lens": [result.num_cached_tokens for result in results],
        "start_times": [result.started_s - load.started_s for result in results],
        "queue_times": [result.queue_s for result in results],
        "ttfts": [result.ttft_s for result in results],
        "itls": [result.itls_s for result in results],
        "e2els": [result.e2e_s for result in results],
        "finish_reasons": [result.finish_reason for result in results],
        "generated_texts": [result.text for result in results],
        "errors": [result.error or "" for result in results],
    }


def choose_path(facts: RunFacts, directory: Path | None, filename: str | None) -> Path:
    """``--result-dir`` / ``--result-filename``, or a name made of what the run was."""
    if filename is None:
        rate = f"{facts.request_rate:g}qps"
        places = f"-concurrency{facts.max_concurrency}" if facts.max_concurrency else ""
        model = re.sub(r"[^\w.-]", "_", facts.model.rstrip("/").rpartition("/")[2])
        label = re.sub(r"[^\w.-]", "_", facts.label or facts.backend)
        filename = f"{label}-{rate}{places}-{model}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    return (directory or Path()) / filename


def write_record(path: Path, record: Mapping[str, Any], append: bool = False) -> None:
    """Write it, or add it to a file that has one record a line. Raises SettingsError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if append else "w", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise SettingsError([f"the result cannot be written to {path}: {error.strerror}"]) from None
