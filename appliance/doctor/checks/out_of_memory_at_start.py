"""Does the engine lack memory while it starts? It tells so itself, or the kernel ends it again and again."""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.doctor.evidence import Evidence
from appliance.doctor.findings import Finding, Severity

_LACK = re.compile(
    r"out of memory|OutOfMemory|MemoryError|bad_alloc|cannot allocate memory|kv_cache_memory|KV cache holds|no memory",
    re.IGNORECASE,
)
_ADVICE = (
    "lower --max-model-len, --kv-cache-memory or --gpu-memory-utilization, bake with smaller weights (--dtype), "
    "or give the box more memory"
)


def tells_of_memory(text: str) -> bool:
    """Whether an error is one for want of memory."""
    return _LACK.search(text) is not None


def check(evidence: Evidence) -> Iterator[Finding]:
    """Only of a box that is not ready."""
    if evidence.is_ready:
        return
    seen = [str(model["error"]) for model in evidence.models if tells_of_memory(str(model.get("error")))]
    seen += [line.strip() for line in evidence.log.splitlines() if tells_of_memory(line)][-3:]
    if not seen:
        seen += _kills(evidence)
    if seen:
        yield Finding("oom-at-start", Severity.CRITICAL, "the engine lacks memory to start", tuple(seen), _ADVICE)


def _kills(evidence: Evidence) -> list[str]:
    machine, starts = evidence.machine, evidence.after.by_label("breadbox:restarts_total", "program")
    num_restarts = sum(count for program, count in starts.items() if program.startswith("engine-"))
    if machine is None or not machine.num_oom_kills or not num_restarts:
        return []
    return [
        f"the kernel has killed {machine.num_oom_kills} processes of this control group for want of memory",
        f"the engine was started again {num_restarts:.0f} times and is not ready",
    ]
