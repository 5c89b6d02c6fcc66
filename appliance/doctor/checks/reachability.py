"""Does the box answer, and would it serve a request? A start that lacks memory is another check's."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.doctor.checks.out_of_memory_at_start import tells_of_memory
from appliance.doctor.evidence import Evidence
from appliance.doctor.findings import Finding, Severity


def check(evidence: Evidence) -> Iterator[Finding]:
    """Unreachable, or not ready."""
    if evidence.error is not None:
        yield Finding(
            "unreachable",
            Severity.CRITICAL,
            f"{evidence.url} cannot be examined",
            (evidence.error,),
            "see whether the box runs (its last line says why it ended), and whether --url and --api-key are right",
        )
    elif not evidence.is_ready and not any(tells_of_memory(str(model.get("error"))) for model in evidence.models):
        yield Finding(
            "not-ready",
            Severity.WARNING,
            f"the box is {evidence.readiness.get('status', 'not ready')}",
            tuple(
                f"{model.get('model')}: {model.get('phase')}, {model.get('percent', 0):.0f} %"
                + (f", {model['error']}" if model.get("error") else "")
                for model in evidence.models
            ),
            "wait if it is loading; what takes long is in breadbox:startup_seconds and in the engine's log",
        )
