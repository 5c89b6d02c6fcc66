"""Children of dead programs: the kernel hands them to the box's parent process, which ends them in good manners.

An nginx worker outlives a killed master and would keep the port; SIGQUIT makes it give up the port at once and finish
the answers it has begun. Other orphans get a SIGTERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
from pathlib import Path

from appliance.process_stat import find_pids, read_stat

logger = logging.getLogger(__name__)
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on orphaned descendants become children of this process, as they do of PID 1 anyway."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def find_children() -> set[int]:
    """Pids of this process's children that have not been reaped."""
    me = os.getpid()
    children = set()
    for pid in find_pids():
        state, parent, *_ = read_stat(pid) or ("", "0")
        if int(parent) == me and state != "Z":
            children.add(pid)
    return children


def end_orphans(known: set[int], told: set[int], kill: bool = False) -> set[int]:
    """Ask each child not in `known` to end, once; returns those that are there, to be passed as `told` again."""
    orphans = find_children() - known
    for pid in orphans if kill else orphans - told:
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            polite = signal.SIGQUIT if name == "nginx" else signal.SIGTERM
            logger.debug("orphan pid=%d name=%s", pid, name)
            os.kill(pid, signal.SIGKILL if kill else polite)
    return orphans
