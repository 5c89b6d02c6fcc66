"""Does the flow of tokens stop again and again, though it is quick most of the time?"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.doctor.evidence import Evidence
from appliance.doctor.findings import Finding, Severity

_ITL, _STEP = "vllm:inter_token_latency_seconds", "vllm:iteration_tokens_total"
_TIMES = 5  # the median
_ENOUGH = 100  # gaps, before a percentile says something


def check(evidence: Evidence) -> Iterator[Finding]:
    """The 99th percentile against the median: a slow machine has both."""
    samples = evidence.recent(_ITL, _ENOUGH)
    if samples.total(f"{_ITL}_count") < _ENOUGH:
        return
    p50, p99 = samples.quantile(_ITL, 0.5), samples.quantile(_ITL, 0.99)
    if p99 <= evidence.limits.itl_s or p99 < _TIMES * p50:
        return
    num_preempted = samples.total("vllm:num_preemptions_total")
    facts = (
        f"half of the tokens came within {p50:g} s of the one before, one in a hundred only after {p99:g} s",
        f"the largest steps had about {samples.quantile(_STEP, 0.99):.0f} tokens, {num_preempted:.0f} preemptions",
    )
    yield Finding("token-spikes", Severity.WARNING, "tokens stop periodically", facts, _advice(num_preempted))


def _advice(num_preempted: float) -> str:
    if num_preempted:
        return "requests take each other's memory: lower --max-num-seqs or raise --kv-cache-memory"
    return (
        "long prompts are computed in the same steps: lower --max-num-batched-tokens or set "
        "--long-prefill-token-threshold; keep --enable-chunked-prefill on"
    )
