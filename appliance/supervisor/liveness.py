"""When would only a new container help? When an engine has not come back for long, whatever the box did about it.

Until then /livez stays 200: the box restarts what dies or hangs by itself, and a restart from outside would only take
away the requests that wait. The verdict is a file in the run directory, which the API reads.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from appliance.box_facts import STUCK_FILE

logger = logging.getLogger(__name__)

PATIENCE_S = 300.0
START_FACTOR = 5  # a model that loads for long may take long to come back, too
MAX_LOOK_S = 5.0  # one look does not count for more, however long the box itself stood still


class Liveness:
    """Looks at whether all engines are ready, one look after another; `start_s` is how long they took at first."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = run_dir / STUCK_FILE
        self._clock = clock
        self._looked_at_s = clock()
        self._away_s = 0.0
        self._is_stuck = False

    def look(self, are_ready: bool, start_s: float) -> None:
        """Take note of one look at a box that has been ready before."""
        now_s = self._clock()
        self._away_s = 0.0 if are_ready else self._away_s + min(now_s - self._looked_at_s, MAX_LOOK_S)
        self._looked_at_s = now_s
        is_stuck = self._away_s > PATIENCE_S + START_FACTOR * start_s
        if is_stuck and not self._is_stuck:
            logger.error("an engine has not come back for %.0f s: the box is not alive any more", self._away_s)
        self._is_stuck = is_stuck
        self._tell()

    def _tell(self) -> None:
        # Again at each look: on a full disk it works only later.
        with contextlib.suppress(OSError):
            if self._is_stuck:
                self._file.touch()
            else:
                self._file.unlink(missing_ok=True)
