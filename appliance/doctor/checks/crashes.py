"""Have programs of the box died and been started again?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.doctor.evidence import Evidence
from appliance.doctor.findings import Finding, Severity

_LOOP = 3
_SAYS_WHY = re.compile(r"Traceback|Error:|exited|terminated by|SIGSEGV|SIGKILL|WORKER TIMEOUT")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Counted since the box started."""
    restarts = {
        program: count
        for program, count in evidence.after.by_label("breadbox:restarts_total", "program").items()
        if count
    }
    if not restarts:
        return
    grows = evidence.window.total("breadbox:restarts_total") > 0
    is_loop = grows or max(restarts.values()) > _LOOP
    facts = [f"{program} was started again {count:.0f} times" for program, count in restarts.items()]
    resumed = evidence.after.total("breadbox:resumed_requests_total")
    if resumed:
        facts.append(f"{resumed:.0f} times a request went on after its engine was lost")
    facts += [line.strip() for line in evidence.log.splitlines() if _SAYS_WHY.search(line)][-3:]
    yield Finding(
        "crash",
        Severity.CRITICAL if is_loop else Severity.WARNING,
        "programs die again and again" if is_loop else "programs have died",
        tuple(facts),
        "read the log before each restart: a traceback is a bug, nothing at all is a kill (memory: dmesg, the "
        "container's limit), WORKER TIMEOUT an API worker that was blocked; --log-level debug tells more",
    )
