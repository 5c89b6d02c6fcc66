"""Do first tokens come late, and is it the queue, the memory, or the prompts' length?"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.doctor.evidence import Evidence
from appliance.doctor.findings import Finding, Severity
from appliance.doctor.samples import Samples

_TTFT, _QUEUE, _PREFILL = (
    "vllm:time_to_first_token_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
)
_FULL = 0.9


def check(evidence: Evidence) -> Iterator[Finding]:
    """The 99th percentile against the limit."""
    samples = evidence.recent(_TTFT)
    p99 = samples.quantile(_TTFT, 0.99)
    if p99 <= evidence.limits.ttft_s:
        return
    waiting, usage = evidence.after.total("vllm:num_requests_waiting"), evidence.after.total("vllm:kv_cache_usage_perc")
    facts = (
        f"99 % of the first tokens came within {p99:g} s, which is over {evidence.limits.ttft_s:g} s",
        f"mean time in the queue {samples.mean(_QUEUE):.2f} s, computing the prompt {samples.mean(_PREFILL):.2f} s",
        f"{waiting:.0f} requests wait, {100 * usage:.0f} % of the KV cache are used",
    )
    yield Finding(
        "slow-first-token", Severity.WARNING, "first tokens come late", facts, _advice(samples, usage, evidence.after)
    )


def _advice(samples: Samples, usage: float, after: Samples) -> str:
    if samples.mean(_QUEUE) > samples.mean(_PREFILL):
        if usage > _FULL:
            return "requests wait for the KV cache: raise --kv-cache-memory, shorten --max-model-len, or add replicas"
        return "requests wait for their turn: raise --max-num-seqs if tokens still flow, else add replicas"
    num_queried = after.total("vllm:prefix_cache_queries_total")
    hit_rate = after.total("vllm:prefix_cache_hits_total") / num_queried if num_queried else 0.0
    return (
        f"prompts take long to compute (prefix cache hits {100 * hit_rate:.0f} %): put what prompts share at their "
        "beginning, raise --max-num-batched-tokens, or use a faster machine"
    )
