"""Does the box do less than it could: too few cores, work done twice, a batch that is kept small, or just too slow?"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.doctor.evidence import Evidence, Machine
from appliance.doctor.findings import Finding, Severity

_MUCH = 0.1
_PREEMPTIONS_PER_S = 0.1
_ROOM = 0.5  # of the KV cache
_CROWD = 2.0  # processes that want to run, for each core


def check(evidence: Evidence) -> Iterator[Finding]:
    """Only of a box that has something to do."""
    busy = evidence.window.total("vllm:iteration_tokens_total_count") > 0
    causes = [*_machine(evidence.machine), *_gpus(evidence), *_scheduling(evidence)] if busy else []
    causes += _expectation(evidence) if busy else []
    if causes:
        facts = (f"{_tokens_per_s(evidence):.1f} output tokens/s", *(fact for fact, _ in causes))
        advice = "; ".join(dict.fromkeys(advice for _, advice in causes))
        yield Finding("low-throughput", Severity.WARNING, "the box does less than it could", facts, advice)


def _tokens_per_s(evidence: Evidence) -> float:
    return evidence.window.total("vllm:generation_tokens_total") / evidence.seconds


def _machine(machine: Machine | None) -> Iterator[tuple[str, str]]:
    if machine is None:
        return
    if machine.throttled_share > _MUCH:
        fact = f"the container's CPU limit was hit in {100 * machine.throttled_share:.0f} % of the time slices"
        yield fact, "raise the container's CPU limit, or set --num-threads to no more than it allows"
    if machine.stolen_share > _MUCH:
        fact = f"the hypervisor took {100 * machine.stolen_share:.0f} % of the CPU time"
        yield fact, "move to a machine that is not overbooked"
    if machine.load > _CROWD * machine.num_cores:
        fact = f"{machine.load:.1f} processes want to run on {machine.num_cores} cores"
        yield fact, "keep other work off these cores, lower --num-threads or --api-workers"


def _gpus(evidence: Evidence) -> Iterator[tuple[str, str]]:
    for gpu in evidence.gpus:
        if gpu.is_throttled:
            yield (
                f"{gpu.name} is slowed down by heat or power",
                "see to its cooling and its power limit (nvidia-smi -q)",
            )


def _scheduling(evidence: Evidence) -> Iterator[tuple[str, str]]:
    preemptions_per_s = evidence.window.total("vllm:num_preemptions_total") / evidence.seconds
    if preemptions_per_s > _PREEMPTIONS_PER_S:
        yield (
            f"{preemptions_per_s:.1f} requests a second lose their place and are computed again",
            "lower --max-num-seqs or raise --kv-cache-memory",
        )
    after = evidence.after
    running = after.total("vllm:num_requests_running")
    waiting = after.total("vllm:num_requests_waiting_by_reason", reason="capacity")
    usage = after.total("vllm:kv_cache_usage_perc")
    if waiting > running and usage < _ROOM and evidence.before.total("vllm:num_requests_waiting") > running:
        yield (
            f"{waiting:.0f} requests wait for {running:.0f} others that use only {100 * usage:.0f} % of the KV cache",
            "raise --max-num-seqs (and --max-num-batched-tokens)",
        )


def _expectation(evidence: Evidence) -> list[tuple[str, str]]:
    expected = evidence.limits.tokens_per_s
    if expected is None or _tokens_per_s(evidence) >= expected:
        return []
    fact = f"{expected:g} output tokens/s are expected"
    return [(fact, "compare with `breadbox bench throughput` on a machine that is known to be good")]
