"""What the doctor prints, for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from appliance.doctor.checks import CHECKS
from appliance.doctor.evidence import Evidence
from appliance.doctor.findings import Finding, Severity


def examine(evidence: Evidence) -> list[Finding]:
    """All that the checks find, the worst first."""
    findings = [finding for check in CHECKS.values() for finding in check(evidence)]
    return sorted(findings, key=lambda finding: -finding.severity)


def worst(findings: Sequence[Finding]) -> Severity:
    """The whole's severity."""
    return max((finding.severity for finding in findings), default=Severity.OK)


def as_json(evidence: Evidence, findings: Sequence[Finding]) -> str:
    """For programs."""
    report = {
        "url": evidence.url,
        "severity": worst(findings).name.lower(),
        "findings": [finding.to_dict() for finding in findings],
        "checks": list(CHECKS),
        "not_examined": not_examined(evidence),
    }
    return json.dumps(report, indent=1, ensure_ascii=False)


def as_text(evidence: Evidence, findings: Sequence[Finding]) -> str:
    """For people."""
    lines = [_describe_load(evidence)] if evidence.error is None else []
    for finding in findings:
        lines += ["", f"{finding.severity.name}: {finding.summary} [{finding.trouble}]"]
        lines += [f"  seen:  {fact}" for fact in finding.evidence]
        lines += [f"  do:    {finding.advice}"]
    missing = not_examined(evidence)
    lines += ["", *([f"not examined: {', '.join(missing)}"] if missing else [])]
    lines.append(f"{len(CHECKS)} checks, {f'findings: {len(findings)}' if findings else 'all is well'}")
    return "\n".join(lines).lstrip("\n")


def _describe_load(evidence: Evidence) -> str:
    after = evidence.after
    running, waiting = after.total("vllm:num_requests_running"), after.total("vllm:num_requests_waiting")
    tokens = evidence.window.total("vllm:generation_tokens_total")
    return (
        f"{evidence.url} is {evidence.readiness.get('status', 'not ready')}: "
        f"{running:.0f} running, {waiting:.0f} waiting, {tokens / evidence.seconds:.1f} output tokens/s"
    )


def not_examined(evidence: Evidence) -> list[str]:
    """What could not be looked at, and how to make it so."""
    missing = []
    if evidence.machine is None:
        missing.append("the box's machine (run the doctor there, or with docker exec)")
    if evidence.probe is None or evidence.probe.error:
        why = f": {evidence.probe.error}" if evidence.probe else ""
        missing.append(f"a stream{why}")
    if not evidence.log:
        missing.append("logs (--log FILE)")
    return missing
