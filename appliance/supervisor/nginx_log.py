"""nginx's log, from which one learns that a worker of nginx died: supervisord doesn't see it, as nginx replaces it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

from appliance.box_facts import NGINX_WORKER_DEATHS

_DIED = re.compile(rb"worker process (\d+) exited (?:on signal|with code [1-9])")


class NginxLog:
    """Passes lines on, and notes the pid of each worker that died as another line of a file."""

    def __init__(self, run_dir: Path, forward: Callable[[bytes], None]) -> None:
        self._deaths = run_dir / NGINX_WORKER_DEATHS
        self._forward = forward

    def read(self, line: bytes) -> None:
        """One line of the log."""
        died = _DIED.search(line)
        if died:
            with contextlib.suppress(OSError), self._deaths.open("ab") as file:
                file.write(died[1] + b"\n")
        self._forward(line)
