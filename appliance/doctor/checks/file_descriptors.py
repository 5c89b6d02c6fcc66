"""May the box's programs open enough files? Each client is one or two in nginx and in a worker."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.doctor.evidence import Evidence
from appliance.doctor.findings import Finding, Severity

_FEW = 4096
_NEAR = 0.8


def check(evidence: Evidence) -> Iterator[Finding]:
    """The limit, and how near the programs are to it."""
    if evidence.machine is None:
        return
    most = evidence.machine.max_files
    near = {
        program: count
        for program, count in evidence.after.by_label("breadbox:open_fds", "program").items()
        if count > _NEAR * most
    }
    if near or most < _FEW:
        facts = [f"a program may open {most} files", *(f"{name} has {count:.0f} open" for name, count in near.items())]
        yield Finding(
            "file-descriptors",
            Severity.CRITICAL if near else Severity.WARNING,
            "programs may open too few files",
            tuple(facts),
            "raise the hard limit: ulimit -Hn, docker's --ulimit nofile=65536:65536, LimitNOFILE of a systemd unit",
        )
