"""One named pipe a program, into which supervisord writes its output: passed on as it comes, the end of it remembered.

Pipes instead of /dev/stdout because that can't be opened where stdout is a socket or belongs to another user, and
instead of files because nothing has to be rotated and a read-only root is enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path

_TAIL_LINES = 40
_MAX_LINE_BYTES = 64 * 1024
_LOG_PREFIX = re.compile(rb"^[\d-]+ [\d:,.]+ [A-Z]+ +\S+ \S+: ")  # see appliance.logs
_SAYS_WHY = re.compile(rb"error|emerg|exception|fatal|cannot|can't", re.IGNORECASE)
# gunicorn's farewell, which only says that the reason was told before.
_SAYS_NOTHING = re.compile(rb"Worker failed to boot|Shutting down: Master|exited with code|Exception in worker process")


def _message_of(line: bytes) -> str:
    if line.startswith(b"{"):
        with contextlib.suppress(ValueError, KeyError):
            return str(json.loads(line)["message"])
    return _LOG_PREFIX.sub(b"", line).decode(errors="replace")


class LogPipe:
    """Reads what one program says."""

    def __init__(self, path: Path, forward: Callable[[bytes], None]) -> None:
        os.mkfifo(path, 0o600)
        # Open for both ways, so that it neither waits for a writer nor ends when one goes.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._forward = forward
        self._rest = b""
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        asyncio.get_running_loop().add_reader(self._descriptor, self.read)

    def read(self) -> None:
        """Take what is there now."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._descriptor, 1 << 16):
                self._split(self._rest + data)

    def close(self) -> None:
        """Take the rest and stop reading."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self.read()
        if self._rest:
            self._line(self._rest)
        os.close(self._descriptor)

    def reason(self) -> str:
        """The last line that tells why the program ended, as far as one can see that from outside; "" if none."""
        lines = [line.strip() for line in self._tail if line.strip() and not _SAYS_NOTHING.search(line)]
        telling = [line for line in lines if _SAYS_WHY.search(line)] or lines
        return _message_of(telling[-1]) if telling else ""

    def _split(self, data: bytes) -> None:
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > _MAX_LINE_BYTES:
            self._line(self._rest)
            self._rest = b""

    def _line(self, line: bytes) -> None:
        self._tail.append(line)
        self._forward(line)
