"""All requests of a load together: counts, rates, and the distributions of TTFT, TPOT, ITL and E2E."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from appliance.bench.load import LoadResult
from appliance.bench.result import RequestResult
from appliance.bench.statistics import Distribution, describe

# The metrics that can be asked for, in the order in which they are printed.
METRICS = ("ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue")
GOODPUT_METRICS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class Summary:
    """Rates are per second over ``duration_s``; distributions, by the names in `METRICS`, are in ms."""

    num_completed: int
    num_failed: int
    duration_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_throughput: float
    peak_output_throughput: float  # of the best second
    peak_concurrency: int
    tokens_per_chunk: float
    metrics: Mapping[str, Distribution]
    errors: Mapping[str, int]  # what went wrong, how often; most frequent first


def summarize(
    load: LoadResult, percents: Sequence[float] = (99.0,), goodput: Mapping[str, float] | None = None
) -> Summary:
    """Put a load's results together. ``goodput`` has limits in ms by metric."""
    done = [result for result in load.results if result.is_success]
    num_prompt = sum(result.num_prompt_tokens for result in done)
    num_output = sum(result.num_output_tokens for result in done)
    duration_s = max(load.duration_s, 1e-9)
    return Summary(
        num_completed=len(done),
        num_failed=len(load.results) - len(done),
        duration_s=load.duration_s,
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        num_cached_tokens=sum(result.num_cached_tokens for result in done),
        request_throughput=len(done) / duration_s,
        request_goodput=None if goodput is None else _count_good(done, goodput) / duration_s,
        output_throughput=num_output / duration_s,
        total_throughput=(num_prompt + num_output) / duration_s,
        peak_output_throughput=_peak_output(load.started_s, done),
        peak_concurrency=_peak_concurrency(done),
        tokens_per_chunk=num_output / max(1, sum(len(result.itls_s) + 1 for result in done)),
        metrics={name: describe(_values(name, done), percents) for name in METRICS},
        errors=dict(Counter(result.error for result in load.results if result.error).most_common()),
    )


def _values(metric: str, done: Sequence[RequestResult]) -> list[float]:
    if metric == "itl":
        return [1000 * gap_s for result in done for gap_s in result.itls_s]
    return [value for result in done if (value := _value(metric, result)) is not None]


def _value(metric: str, result: RequestResult) -> float | None:
    seconds = {
        "ttft": result.ttft_s,
        "tpot": result.tpot_s,
        "e2el": result.e2e_s,
        "client_queue_time": result.queue_s,
        "e2el_including_client_queue": result.queue_s + result.e2e_s,
    }[metric]
    return None if seconds is None else 1000 * seconds


def _count_good(done: Sequence[RequestResult], limits_ms: Mapping[str, float]) -> int:
    return sum(
        all((_value(metric, result) or 0.0) <= limit_ms for metric, limit_ms in limits_ms.items()) for result in done
    )


def _peak_output(started_s: float, done: Sequence[RequestResult]) -> float:
    """Output tokens in the best whole second; a chunk of several tokens counts as so many."""
    tokens: defaultdict[int, float] = defaultdict(float)
    for result in done:
        weight = result.num_output_tokens / (len(result.itls_s) + 1)
        at_s = result.started_s + result.ttft_s - started_s
        for gap_s in (0.0, *result.itls_s):
            at_s += gap_s
            tokens[int(at_s)] += weight
    return max(tokens.values(), default=0.0)


def _peak_concurrency(done: Sequence[RequestResult]) -> int:
    """The most requests that were on their way at one moment."""
    ends = [(result.started_s + result.e2e_s, -1) for result in done]
    running = peak = 0
    for _, change in sorted([*((result.started_s, 1) for result in done), *ends]):
        running += change
        peak = max(peak, running)
    return peak
