"""The deadline of a box that goes down, left where the API workers look for it (`appliance.api.drain`).

Its room on the disk is taken at the start: a box that goes down because the disk is full must be able to say so.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from appliance.box_facts import DRAINING_FILE

logger = logging.getLogger(__name__)

PREPARED_FILE = f"{DRAINING_FILE}.new"
_CHARS = 32


class DrainFile:
    """Nobody sees half of it."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / DRAINING_FILE
        self._prepared = run_dir / PREPARED_FILE

    def prepare(self) -> None:
        """Take the room."""
        self._prepared.write_text(" " * _CHARS)

    @property
    def is_written(self) -> bool:
        """Whether the box goes down already."""
        return self._path.exists()

    def write(self, timeout_s: float) -> None:
        """The time that running requests have. In `time.monotonic`, which all processes share and nobody sets."""
        try:
            with self._prepared.open("r+") as file:
                file.write(f"{time.monotonic() + timeout_s:.6f}\n".ljust(_CHARS))
            self._prepared.rename(self._path)
        except OSError as error:  # somebody took the folder away: the box ends all the same
            logger.error("the API is not told that the box goes down error=%s", error)
