"""The block that `bench serve` prints, with the labels that people and scripts know from `vllm bench serve`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.bench.speculation import SpeculationStats
from appliance.bench.statistics import Distribution, percent_label
from appliance.bench.summary import METRICS, Summary

_WIDTH = 50
_SHOWN_ERRORS = 5
_MANY_TOKENS_PER_CHUNK = 1.25

# metric → (title of its section, name in its lines)
_SECTIONS = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
    "client_queue_time": ("Client Queue Time", "Client Queue Time"),
    "e2el_including_client_queue": ("End-to-end Latency incl. Client Queue", "E2EL+Queue"),
}


@dataclass(frozen=True)
class ReportOptions:
    """What the load was, and which metrics are wanted."""

    metrics: Sequence[str] = ("ttft", "tpot", "itl")
    max_concurrency: int | None = None
    request_rate: float = math.inf


def format_report(summary: Summary, options: ReportOptions, speculation: SpeculationStats | None = None) -> str:
    """The whole block; errors, if there were any, below it."""
    lines = [_title("Serving Benchmark Result", "="), *_head_lines(summary, options)]
    for metric in METRICS:
        if metric in options.metrics:
            lines += _metric_lines(metric, summary.metrics[metric])
    if speculation is not None:
        lines += _speculation_lines(speculation)
    return "\n".join([*lines, "=" * _WIDTH, *_note_lines(summary), *_error_lines(summary)])


def _head_lines(summary: Summary, options: ReportOptions) -> list[str]:
    facts: list[tuple[str, int | float | None]] = [
        ("Successful requests:", summary.num_completed),
        ("Failed requests:", summary.num_failed),
        ("Maximum request concurrency:", options.max_concurrency),
        ("Request rate configured (RPS):", None if math.isinf(options.request_rate) else float(options.request_rate)),
        ("Benchmark duration (s):", summary.duration_s),
        ("Total input tokens:", summary.num_prompt_tokens),
        ("Total generated tokens:", summary.num_output_tokens),
        ("Request throughput (req/s):", summary.request_throughput),
        ("Request goodput (req/s):", summary.request_goodput),
        ("Output token throughput (tok/s):", summary.output_throughput),
        ("Peak output token throughput (tok/s):", summary.peak_output_throughput),
        ("Peak concurrent requests:", summary.peak_concurrency),
        ("Total token throughput (tok/s):", summary.total_throughput),
    ]
    return [_line(label, value) for label, value in facts if value is not None]


def _metric_lines(metric: str, values: Distribution) -> list[str]:
    title, name = _SECTIONS[metric]
    return [
        _title(title, "-"),
        _line(f"Mean {name} (ms):", values.mean),
        _line(f"Median {name} (ms):", values.median),
        *(_line(f"P{percent_label(percent)} {name} (ms):", value) for percent, value in values.percentiles.items()),
    ]


def _speculation_lines(stats: SpeculationStats) -> list[str]:
    return [
        _title("Speculative Decoding", "-"),
        _line("Acceptance rate (%):", 100 * stats.acceptance_rate),
        _line("Acceptance length:", stats.acceptance_length),
        _line("Drafts:", stats.num_drafts),
        _line("Draft tokens:", stats.num_draft_tokens),
        _line("Accepted tokens:", stats.num_accepted_tokens),
        *(
            _line(f"Acceptance rate of position {position} (%):", 100 * rate)
            for position, rate in enumerate(stats.position_rates)
        ),
    ]


def _note_lines(summary: Summary) -> list[str]:
    if summary.tokens_per_chunk < _MANY_TOKENS_PER_CHUNK:
        return []
    return [f"A chunk carries {summary.tokens_per_chunk:.1f} tokens on average, so ITL is not the time of one token."]


def _error_lines(summary: Summary) -> list[str]:
    shown = list(summary.errors.items())[:_SHOWN_ERRORS]
    lines = [f"{count} failed: {error}" for error, count in shown]
    hidden = len(summary.errors) - len(shown)
    return lines + ([f"… and {hidden} more kinds of failure"] if hidden else [])


def _title(text: str, filler: str) -> str:
    inside = f" {text} " if filler == "=" else text
    return inside.center(_WIDTH, filler)


def _line(label: str, value: int | float) -> str:
    return f"{label:<40} {value:.2f}" if isinstance(value, float) else f"{label:<40} {value}"
