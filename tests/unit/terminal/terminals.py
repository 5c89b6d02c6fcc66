"""A command in a terminal of its own (a pty), as a person has it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator


class Terminal:
    """What was shown so far, and keys to press."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self.process = process
        self.shown = ""

    def expect(self, text: str, within_s: float = 30) -> str:
        """Wait until `text` is shown behind what was expected before; returns everything up to it."""
        deadline = time.monotonic() + within_s
        while text not in self.shown:
            assert self._read(deadline - time.monotonic()), f"{text!r} did not come; shown was {self.shown!r}"
        before, _, self.shown = self.shown.partition(text)
        return before

    def type(self, text: str) -> None:
        """Keys, Enter being a newline."""
        os.write(self._descriptor, text.encode())

    def end_input(self, prompt: str = "> ") -> None:
        """Ctrl-D at `prompt`: typed before the prompt it is lost when the line editor starts."""
        self.expect(prompt)
        self.type("\x04")

    def wait(self, within_s: float = 30) -> int:
        """Its exit status, once everything it shows is read."""
        deadline = time.monotonic() + within_s
        while self.process.poll() is None:
            self._read(0.05)
            assert time.monotonic() < deadline, f"it does not end; shown was {self.shown!r}"
        while self._read(0.05):
            pass
        return self.process.returncode

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._descriptor], [], [], max(0.0, timeout_s))[0]:
            return False
        with contextlib.suppress(OSError):  # nobody holds the other end any more
            data = os.read(self._descriptor, 65536)
            self.shown += data.decode(errors="replace")
            return bool(data)
        return False


def _take_terminal() -> None:
    """In the child: its controlling terminal, so that Ctrl-C becomes a signal; jobs in the background ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextlib.contextmanager
def running_in_terminal(*words: str) -> Iterator[Terminal]:
    """`breadbox` with these words, on a terminal of 80 columns."""
    own, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BREADBOX_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "appliance", *words],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment | {"TERM": "xterm"},
        preexec_fn=_take_terminal,
    )
    os.close(its)
    try:
        yield Terminal(own, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(own)
