"""What a box says: messages and progress on stdout, the programs' logs on stderr.

On a terminal the progress is one line that is written over; elsewhere it is one line for each change of phase.
"""

from __future__ import annotations

import sys
from typing import BinaryIO

_CLEAR_LINE = b"\r\x1b[K"


class Console:
    """Keeps the updating progress line apart from everything else that is printed."""

    def __init__(
        self, out: BinaryIO | None = None, log: BinaryIO | None = None, is_terminal: bool | None = None
    ) -> None:
        self._out = out or sys.stdout.buffer
        self._log = log or sys.stderr.buffer
        self._is_terminal = self._out.isatty() if is_terminal is None else is_terminal
        self._progress = b""  # as shown now
        self._phase = ""

    def say(self, text: str) -> None:
        """Print a message."""
        self._clear()
        self._write(self._out, text.encode() + b"\n")

    def log(self, line: bytes) -> None:
        """Pass on a program's log line, which has no newline at its end."""
        self._clear()
        self._write(self._log, line + b"\n")
        self._show()

    def progress(self, phase: str, detail: str = "") -> None:
        """Show how far the start is; ``detail`` may change often, ``phase`` seldom."""
        line = f"{phase} {detail}".rstrip().encode()
        if self._is_terminal and line != self._progress:
            self._clear()
            self._progress = line
            self._show()
        elif not self._is_terminal and phase != self._phase:
            self._write(self._out, line + b"\n")
        self._phase = phase

    def end_progress(self) -> None:
        """Take the progress line away."""
        self._clear()
        self._progress = b""

    def _clear(self) -> None:
        if self._progress:
            self._write(self._out, _CLEAR_LINE)

    def _show(self) -> None:
        if self._progress:
            self._write(self._out, self._progress)

    @staticmethod
    def _write(stream: BinaryIO, data: bytes) -> None:
        try:
            stream.write(data)
            stream.flush()
        except (OSError, ValueError):
            pass  # whoever read it is gone; the box must not end for that
