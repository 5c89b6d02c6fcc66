"""Going down in good order: no new work once the box drains, and what its time does not suffice for ends with an error.

The box's parent leaves a file in the run directory that holds the deadline (of `time.monotonic`). A stream that is
still open then gets an error event and [DONE], a collected answer a 503; nobody sees a cut connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from weakref import WeakSet

from appliance.api.choice_stream import ChoiceStream
from appliance.box_facts import DRAINING_FILE, NOT_READY_FILE
from appliance.errors import UnavailableError

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 5.0
_POLL_S = 0.25


class Drain:
    """What one API worker knows about the box's end."""

    def __init__(self, run_dir: Path | None) -> None:
        self._file = None if run_dir is None else run_dir / DRAINING_FILE
        self._not_ready_file = None if run_dir is None else run_dir / NOT_READY_FILE
        self._streams: WeakSet[ChoiceStream] = WeakSet()

    @property
    def is_on(self) -> bool:
        """Whether the box is going down."""
        return self._file is not None and self._file.exists()

    @property
    def wants_no_work(self) -> bool:
        """Whether nobody should send anything: the box goes down, or it is out of rotation but still serves."""
        return self.is_on or (self._not_ready_file is not None and self._not_ready_file.exists())

    def check(self) -> None:
        """Raises UnavailableError where no new work is taken."""
        if self.is_on:
            raise _going_down()

    def follow(self, stream: ChoiceStream) -> ChoiceStream:
        """End this stream, too, when time is over."""
        self._streams.add(stream)
        return stream

    async def run(self) -> None:
        """Wait for the deadline, if there ever is one, and end what is still open."""
        while (deadline := self._read_deadline()) is None:  # noqa: ASYNC110 - another process writes the file
            await asyncio.sleep(_POLL_S)
        await asyncio.sleep(max(deadline - time.monotonic(), 0.0))
        logger.info("shutdown deadline is over open_requests=%d", len(self._streams))
        for stream in list(self._streams):
            stream.fail(_going_down())

    def _read_deadline(self) -> float | None:
        if self._file is None or not self.is_on:
            return None
        try:
            return float(self._file.read_text())
        except (OSError, ValueError):
            return None  # it is being written


def _going_down() -> UnavailableError:
    return UnavailableError("the server is shutting down", retry_after_s=RETRY_AFTER_S)
