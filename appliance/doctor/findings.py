"""What a check finds."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Severity(enum.IntEnum):
    """Also the exit status."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True)
class Finding:
    """One trouble: ``evidence`` are facts that were seen, ``advice`` is what to do, naming the knob."""

    trouble: str
    severity: Severity
    summary: str
    evidence: tuple[str, ...]
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "trouble": self.trouble,
            "severity": self.severity.name.lower(),
            "summary": self.summary,
            "evidence": list(self.evidence),
            "advice": self.advice,
        }
