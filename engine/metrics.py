"""What the engine counts, under the names that vLLM's dashboards read. One row in `__init__` is one metric.

A resumed request is not a new one: the engine that began it counted its prompt and its TTFT. Here it counts its new
tokens and their latencies and, when it ends, its success, lengths and end-to-end time; not the stages, of which this
engine saw only the end. Requests that are refused never were the engine's: the API counts those.
"""

# ruff: noqa: E501 - a metric a line reads better than five lines a metric

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.config import EngineConfig
from engine.kept_counts import KeptCounts
from engine.metric_registry import MetricMaker, MetricRegistry
from engine.request import Request
from engine.scheduler.outputs import Update
from engine.scheduler.plan import StepStats
from engine.speculation.metrics import SpeculationMetrics
from engine.step import RunnerInfo

_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_PER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
_LENGTHS: tuple[float, ...] = ()  # depend on the model's context
_BUCKETS: dict[str, tuple[float, ...]] = {
    "request_prompt_tokens": _LENGTHS,
    "request_generation_tokens": _LENGTHS,
    "request_max_num_generation_tokens": _LENGTHS,
    "request_params_max_tokens": _LENGTHS,
    "request_prefill_kv_computed_tokens": _LENGTHS,
    "request_num_preemptions": _PREEMPTIONS,
    "iteration_tokens_total": _STEP_TOKENS,
    "time_to_first_token_seconds": _FIRST_TOKEN_S,
    "inter_token_latency_seconds": _PER_TOKEN_S,
    "request_time_per_output_token_seconds": _PER_TOKEN_S,
    "e2e_request_latency_seconds": _REQUEST_S,
    "request_queue_time_seconds": _REQUEST_S,
    "request_prefill_time_seconds": _REQUEST_S,
    "request_decode_time_seconds": _REQUEST_S,
    "request_inference_time_seconds": _REQUEST_S,
}
HISTOGRAMS = frozenset(_BUCKETS)
"""Histograms whose buckets `EngineConfig.custom_histogram_buckets` may replace, without the ``vllm:`` in front."""

# Names that older dashboards read.
_OLD_NAMES = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_queries": "vllm:gpu_prefix_cache_queries",
    "vllm:prefix_cache_hits": "vllm:gpu_prefix_cache_hits",
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
}
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class Load(Protocol):
    """What the gauges read at each scrape, from the thread that renders."""

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_deferred(self) -> int: ...
    @property
    def kv_cache_usage(self) -> float: ...


@dataclass(slots=True)
class Totals:
    """Tokens since the engine began, for the line of statistics."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    preemptions: int = 0


class EngineMetrics:
    """The metrics of one engine, in a registry of their own; every series exists from the start with 0."""

    def __init__(self, config: EngineConfig, info: RunnerInfo, *, engine: str = "0") -> None:
        old_names = _OLD_NAMES if config.show_hidden_metrics else {}
        self._registry = MetricRegistry(KeptCounts(config.counts_path), old_names)
        self._labels = {"model_name": config.served_model_name, "engine": engine}
        buckets = make_buckets(info.max_model_len, config.custom_histogram_buckets or {})
        make = MetricMaker(self._registry.collectors, self._labels, buckets)
        # fmt: off
        self._num_running = make.gauge("num_requests_running", "Requests in the running batch.")
        self._num_waiting = make.gauge("num_requests_waiting", "Requests that wait to be scheduled.")
        self._waiting_by_reason = make.gauges("num_requests_waiting_by_reason", "Waiting requests by what they wait for.", "reason", ("capacity", "deferred"))
        self._kv_cache_usage = make.gauge("kv_cache_usage_perc", "Share of the KV cache blocks in use, 0 to 1.")
        self._preemptions = make.counter("num_preemptions", "Times a request lost its blocks to another.")
        self._prompt_tokens = make.counter("prompt_tokens", "Prompt tokens of requests whose prompt was computed, cached ones included.")
        self._prompt_tokens_by_source = make.counters("prompt_tokens_by_source", "Prompt tokens by where their KV came from.", "source", ("local_compute", "local_cache_hit", "external_kv_transfer"))
        self._prompt_tokens_cached = make.counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache.")
        self._prompt_tokens_cached_by_source = make.counters("prompt_tokens_cached_by_source", "Prompt tokens found in a cache, by where it is.", "source", ("device",))
        self._generation_tokens = make.counter("generation_tokens", "Output tokens generated.")
        self._prefix_cache_queries = make.counter("prefix_cache_queries", "Tokens looked up in the prefix cache.")
        self._prefix_cache_hits = make.counter("prefix_cache_hits", "Tokens found in the prefix cache.")
        self._request_success = make.counters("request_success", "Finished requests by finish reason.", "finished_reason", _FINISH_REASONS)
        self._request_prompt_tokens = make.histogram("request_prompt_tokens", "Prompt tokens of a request.")
        self._request_generation_tokens = make.histogram("request_generation_tokens", "Output tokens of a request.")
        self._request_max_generation_tokens = make.histogram("request_max_num_generation_tokens", "Most output tokens among the choices of a request.")
        self._request_max_tokens = make.histogram("request_params_max_tokens", "max_tokens that a request asked for.")
        self._request_computed_tokens = make.histogram("request_prefill_kv_computed_tokens", "Prompt tokens of a request that were not in the prefix cache.")
        self._request_preemptions = make.histogram("request_num_preemptions", "Times a request was preempted.")
        self._step_tokens = make.histogram("iteration_tokens_total", "Prompt and output tokens of an engine step.")
        self._time_to_first_token = make.histogram("time_to_first_token_seconds", "Arrival to first token.")
        self._inter_token_latency = make.histogram("inter_token_latency_seconds", "Between the tokens of a request.")
        self._time_per_output_token = make.histogram("request_time_per_output_token_seconds", "Mean time per output token after the first of a request.")
        self._e2e_latency = make.histogram("e2e_request_latency_seconds", "Arrival to finish.")
        self._queue_time = make.histogram("request_queue_time_seconds", "Queued to first scheduled.")
        self._prefill_time = make.histogram("request_prefill_time_seconds", "First scheduled to first token.")
        self._decode_time = make.histogram("request_decode_time_seconds", "First to last token.")
        self._inference_time = make.histogram("request_inference_time_seconds", "First scheduled to last token.")
        # fmt: on
        make.info("cache_config_info", "The KV cache's configuration.", _cache_config(config, info))
        self._speculation = (
            SpeculationMetrics(make, config.speculation.num_speculative_tokens) if config.speculation else None
        )
        self._totals = Totals()

    def watch(self, load: Load) -> None:
        """Read the gauges from `load` from now on, at each scrape."""
        self._num_running.set_function(lambda: load.num_running)
        self._num_waiting.set_function(lambda: load.num_waiting)
        self._waiting_by_reason["capacity"].set_function(lambda: load.num_waiting - load.num_deferred)
        self._waiting_by_reason["deferred"].set_function(lambda: load.num_deferred)
        self._kv_cache_usage.set_function(lambda: load.kv_cache_usage)

    def render(self, openmetrics: bool = False) -> str:
        """Prometheus text exposition of everything, or OpenMetrics'."""
        return self._registry.render(openmetrics=openmetrics)

    def keep(self) -> None:
        """Write the counts down for the process that comes after this one."""
        self._registry.keep()

    def record_startup(self, phase_seconds: Mapping[str, float]) -> None:
        """Show how long each phase of the start took."""
        meaning = "Seconds that each phase of the engine's last start took."
        make = MetricMaker(self._registry.collectors, self._labels, {}, prefix="breadbox:")
        for phase, gauge in make.gauges("startup_seconds", meaning, "phase", phase_seconds).items():
            gauge.set(phase_seconds[phase])

    def totals(self) -> Totals:
        """What has been counted since this process began."""
        return dataclasses.replace(self._totals)

    def record_step(self, stats: StepStats, updates: Sequence[Update], now_s: float) -> None:
        """Count a step, the tokens that it delivered at `now_s`, and the requests that they ended."""
        num_tokens = 0
        for request, output in updates:
            num_tokens += len(output.token_ids)
            self._record_tokens(request, now_s)
        self._count_step(stats, num_tokens)
        for request, output in updates:
            if output.finish_reason is not None:
                self.record_finish(request, now_s)

    def record_finish(self, request: Request, now_s: float) -> None:
        """Count a request that ended, however it did."""
        self._request_success[request.finish_reason or "error"].inc()
        self._e2e_latency.observe(now_s - request.timeline.arrived_s)
        self._record_sizes(request)
        if not request.is_resumed:
            self._record_stages(request)

    def _count_step(self, stats: StepStats, num_tokens: int) -> None:
        self._totals.prompt_tokens += stats.num_prompt_tokens
        self._totals.output_tokens += num_tokens
        self._totals.queried_tokens += stats.num_queried_tokens
        self._totals.hit_tokens += stats.num_hit_tokens
        self._totals.preemptions += stats.num_preemptions
        self._generation_tokens.inc(num_tokens)
        if self._speculation is not None:
            self._speculation.record(stats)
        self._step_tokens.observe(stats.num_prompt_tokens + num_tokens)
        if stats.num_preemptions:
            self._preemptions.inc(stats.num_preemptions)
        if stats.num_queried_tokens:
            self._prefix_cache_queries.inc(stats.num_queried_tokens)
            self._prefix_cache_hits.inc(stats.num_hit_tokens)

    def _record_tokens(self, request: Request, now_s: float) -> None:
        timeline = request.timeline
        if timeline.last_token_s is not None:
            self._inter_token_latency.observe(now_s - timeline.last_token_s)
        else:
            timeline.first_token_s = now_s
            if not request.is_resumed:
                self._record_first_token(request, now_s)
        timeline.last_token_s = now_s

    def _record_first_token(self, request: Request, now_s: float) -> None:
        num_cached_tokens = request.num_cached_tokens or 0
        self._time_to_first_token.observe(now_s - request.timeline.arrived_s)
        self._prompt_tokens.inc(request.num_prompt_tokens)
        self._prompt_tokens_cached.inc(num_cached_tokens)
        self._prompt_tokens_cached_by_source["device"].inc(num_cached_tokens)
        self._prompt_tokens_by_source["local_compute"].inc(request.num_prompt_tokens - num_cached_tokens)
        self._prompt_tokens_by_source["local_cache_hit"].inc(num_cached_tokens)

    def _record_sizes(self, request: Request) -> None:
        self._request_prompt_tokens.observe(request.num_prompt_tokens)
        self._request_generation_tokens.observe(request.num_output_tokens)
        self._request_max_generation_tokens.observe(request.num_output_tokens)
        self._request_max_tokens.observe(request.sampling.max_tokens)
        self._request_computed_tokens.observe(request.num_prompt_tokens - (request.num_cached_tokens or 0))
        self._request_preemptions.observe(request.num_preemptions)

    def _record_stages(self, request: Request) -> None:
        timeline = request.timeline
        if timeline.scheduled_s is None:
            return
        self._queue_time.observe(timeline.scheduled_s - timeline.queued_s)
        if timeline.first_token_s is None or timeline.last_token_s is None:
            return
        decode_s = timeline.last_token_s - timeline.first_token_s
        self._prefill_time.observe(timeline.first_token_s - timeline.scheduled_s)
        self._decode_time.observe(decode_s)
        self._inference_time.observe(timeline.last_token_s - timeline.scheduled_s)
        if request.num_output_tokens > 1:
            self._time_per_output_token.observe(decode_s / (request.num_output_tokens - 1))


def make_buckets(max_model_len: int, custom: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """Each histogram's buckets: those asked for, else the usual ones."""
    return {name: custom.get(name) or usual or _one_two_five(max_model_len) for name, usual in _BUCKETS.items()}


def _one_two_five(limit: int) -> list[int]:
    series = [base * 10**exponent for exponent in range(len(str(limit))) for base in (1, 2, 5)]
    return [bound for bound in series if bound <= limit]


def _cache_config(config: EngineConfig, info: RunnerInfo) -> dict[str, str]:
    num_tokens = info.num_blocks * info.block_size
    facts: dict[str, object] = {
        "block_size": info.block_size,
        "cache_dtype": info.dtype,
        "enable_prefix_caching": config.enable_prefix_caching,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "kv_cache_max_concurrency": f"{num_tokens / info.max_model_len:.2f}",
        "kv_cache_memory_bytes": config.kv_cache_memory_bytes,
        "kv_cache_size_tokens": num_tokens,
        "num_gpu_blocks": info.num_blocks,
        "num_gpu_blocks_override": config.num_gpu_blocks_override,
    }
    return {name: str(value) for name, value in facts.items()}
