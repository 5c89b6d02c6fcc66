"""Does a box that serves run out of memory, or is it about to?"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.doctor.checks.out_of_memory_at_start import tells_of_memory
from appliance.doctor.evidence import Evidence, Machine
from appliance.doctor.findings import Finding, Severity
from appliance.memory import describe_bytes

_LITTLE = 0.05  # of the memory
_ADVICE = (
    "lower --kv-cache-memory, --max-num-seqs or --max-num-batched-tokens (the step's own tensors), "
    "fewer --api-workers, or raise the container's memory limit"
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Only of a box that is ready."""
    if not evidence.is_ready:
        return
    seen = [line.strip() for line in evidence.log.splitlines() if tells_of_memory(line)][-3:]
    if evidence.machine is not None and evidence.machine.num_oom_kills:
        seen.append(f"the kernel has killed {evidence.machine.num_oom_kills} processes for want of memory")
    if seen:
        yield Finding("oom-at-run-time", Severity.CRITICAL, "the box has run out of memory", tuple(seen), _ADVICE)
    elif evidence.machine is not None and _is_little(evidence.machine):
        free, limit = map(describe_bytes, (evidence.machine.memory_free_bytes, evidence.machine.memory_limit_bytes))
        facts = [f"{free} of {limit} are free"]
        facts += [f"{name} has {describe_bytes(int(count))}" for name, count in _largest(evidence)]
        yield Finding("oom-at-run-time", Severity.WARNING, "memory is almost used up", tuple(facts), _ADVICE)


def _is_little(machine: Machine) -> bool:
    return machine.memory_free_bytes < _LITTLE * machine.memory_limit_bytes


def _largest(evidence: Evidence) -> list[tuple[str, float]]:
    programs = evidence.after.by_label("breadbox:resident_memory_bytes", "program")
    return sorted(programs.items(), key=lambda item: -item[1])[:3]
