"""Is there room where the box writes?"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.doctor.evidence import Evidence, Folder
from appliance.doctor.findings import Finding, Severity
from appliance.memory import describe_bytes

_LITTLE_BYTES = 64 * 1024**2
_ALMOST_NONE_BYTES = 4 * 1024**2
_FEW_INODES = 0.02


def check(evidence: Evidence) -> Iterator[Finding]:
    """The run directory and temporary files."""
    for folder in evidence.machine.folders if evidence.machine else ():
        if folder.free_bytes < _LITTLE_BYTES or folder.free_inodes_share < _FEW_INODES:
            yield _make_finding(folder)


def _make_finding(folder: Folder) -> Finding:
    free = f"{describe_bytes(folder.free_bytes)} of {describe_bytes(folder.total_bytes)} are free in {folder.path}"
    facts = [free]
    if folder.free_inodes_share < _FEW_INODES:
        facts.append(f"only {100 * folder.free_inodes_share:.1f} % of its inodes are free")
    return Finding(
        "disk",
        Severity.CRITICAL if folder.free_bytes < _ALMOST_NONE_BYTES else Severity.WARNING,
        "the disk is almost full",
        tuple(facts),
        "make room, or put the run directory elsewhere with --run-dir; large request bodies are kept there",
    )
