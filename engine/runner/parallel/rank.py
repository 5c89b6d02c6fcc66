"""``python -m engine.runner.parallel.rank``: a rank other than 0. Started by rank 0, ends with it.

First of all the process binds its life to that of rank 0, before it brings torch in.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Follow rank 0 until it says stop, or is gone."""
    parser = argparse.ArgumentParser(description="One rank of tensor parallelism. The engine starts it.")
    parser.add_argument("--rank", type=int, required=True, help="which one; for people who look at processes")
    parser.add_argument("--fd", type=int, required=True, help="the socket to rank 0")
    parser.add_argument("--parent", type=int, required=True, help="process id of rank 0")
    options = parser.parse_args()
    _bind_life(options.parent)
    from engine.runner.parallel.follower import follow

    return follow(Connection(options.fd))


def _bind_life(parent: int) -> None:
    """End when rank 0 does (for the kernel: the thread of it that started this process), however that happens and
    whatever this process waits for; but not on the signals that a terminal or a supervisor sends to all: rank 0 ends
    its step first."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("rank 0 is gone")


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # the interpreter would take torch apart piece by piece
