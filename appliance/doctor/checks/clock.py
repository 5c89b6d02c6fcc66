"""Do the box's clock and ours agree? Deadlines, arrival times and rates depend on it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from appliance.doctor.evidence import Evidence
from appliance.doctor.findings import Finding, Severity

_MUCH_S = 5.0
_BUILT_S = 1_750_000_000  # no clock is right that shows an earlier time (June 2025)


def check(evidence: Evidence) -> Iterator[Finding]:
    """By the Date of its answers."""
    facts = []
    if evidence.clock_skew_s is not None and abs(evidence.clock_skew_s) > _MUCH_S:
        facts.append(f"the box's clock is {evidence.clock_skew_s:+.0f} s off ours")
    if time.time() < _BUILT_S:
        facts.append(f"our clock shows {time.strftime('%Y-%m-%d')}, which is over")
    if facts:
        yield Finding(
            "clock", Severity.WARNING, "the clock is wrong", tuple(facts), "let NTP set it (chrony, timesyncd)"
        )
