"""Start a program that dies with its parent: `python -S launch.py [--remove FILE] [--note FILE] -- COMMAND …`.

A run on its own file, with the standard library only, because it stands in front of every program's start. Sets the
parent-death signal (which survives exec), removes a socket that an earlier life left behind, notes its pid as another
line of a file (from which one sees how often a program was started), and becomes the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(words: list[str]) -> None:
    """Become the command after ``--``."""
    split = words.index("--")
    options, command = words[:split], words[split + 1 :]
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died in between, so no signal will come
        sys.exit(1)
    for name, value in zip(options[::2], options[1::2], strict=True):
        OPTIONS[name](value)
    try:
        os.execvp(command[0], command)  # noqa: S606 - becoming it is the point
    except OSError as error:
        sys.exit(f"launch: cannot start {command[0]}: {error.strerror}")


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _note(path: str) -> None:
    with contextlib.suppress(OSError), open(path, "a") as file:
        file.write(f"{os.getpid()}\n")


OPTIONS = {"--remove": _remove, "--note": _note}


if __name__ == "__main__":
    main(sys.argv[1:])
