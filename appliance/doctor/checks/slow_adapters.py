"""Do requests wait because more adapters are wanted than fit in a batch?"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.doctor.evidence import Evidence
from appliance.doctor.findings import Finding, Severity

_INFO = "vllm:lora_requests_info"


def check(evidence: Evidence) -> Iterator[Finding]:
    """Only of a box that serves adapters."""
    # The newest of the info series is the one that holds; its value is when it was set.
    series = [(value, dict(labels)) for (name, labels), value in evidence.after.values.items() if name == _INFO]
    if not series:
        return
    _, labels = max(series, key=lambda item: item[0])
    waiting, running = _names(labels, "waiting_lora_adapters"), _names(labels, "running_lora_adapters")
    most = int(labels.get("max_lora") or 0)
    if waiting and len(running) >= most:
        facts = (
            f"{len(running)} adapters are in the batch, of {most} that fit: {', '.join(running)}",
            f"requests wait for {', '.join(waiting)}",
        )
        yield Finding(
            "slow-adapter-switch",
            Severity.WARNING,
            "requests wait for their adapter's turn",
            facts,
            "raise --max-loras (and --max-cpu-loras, so that adapters need not be read again), or send an adapter's "
            "requests to its own replica",
        )


def _names(labels: dict[str, str], label: str) -> list[str]:
    return [name for name in labels.get(label, "").split(",") if name.strip()]
