"""Shows how far a measurement is, on stderr: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

_BAR_EVERY_S = 0.1
_LINE_EVERY_S = 10.0
_BAR_CELLS = 30


class Progress:
    """A bar over `total` steps of `label`. Use as a context manager; ``is_shown`` False makes it silent."""

    def __init__(
        self,
        label: str,
        total: int,
        *,
        is_shown: bool = True,
        out: TextIO | None = None,
        is_terminal: bool | None = None,
    ) -> None:
        self._label = label
        self._total = max(total, 1)
        self._is_shown = is_shown
        self._out = out or sys.stderr
        self._is_terminal = self._out.isatty() if is_terminal is None else is_terminal
        self._started_s = self._shown_s = time.monotonic()
        self._done = 0
        self._failed = 0

    def __enter__(self) -> Progress:
        if self._is_terminal:
            self._show()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_shown:
            return
        if self._is_terminal:
            self._out.write("\r\x1b[K")
        self._out.write(self._line() + "\n")
        self._out.flush()

    def step(self, is_success: bool = True) -> None:
        """One more is done."""
        self._done += 1
        self._failed += not is_success
        now_s = time.monotonic()
        if now_s - self._shown_s >= (_BAR_EVERY_S if self._is_terminal else _LINE_EVERY_S):
            self._shown_s = now_s
            self._show()

    def _show(self) -> None:
        if not self._is_shown:
            return
        if self._is_terminal:
            width = shutil.get_terminal_size().columns
            self._out.write("\r\x1b[K" + f"{self._bar()} {self._line()}"[: width - 1])
        else:
            self._out.write(self._line() + "\n")
        self._out.flush()

    def _bar(self) -> str:
        filled = _BAR_CELLS * min(self._done, self._total) // self._total
        return "█" * filled + "░" * (_BAR_CELLS - filled)

    def _line(self) -> str:
        spent_s = time.monotonic() - self._started_s
        words = [f"{self._label}: {self._done}/{self._total}", f"{spent_s:.0f} s"]
        if self._failed:
            words.append(f"{self._failed} failed")
        if 0 < self._done < self._total:
            words.append(f"about {spent_s / self._done * (self._total - self._done):.0f} s to go")
        return ", ".join(words)
