"""The command: one line a kernel and chip; exit status 1 where any fails."""

from __future__ import annotations

import argparse
import sys
import time

from engine.kernels.aot.check import HEAD, check_all
from engine.kernels.chip import CHIPS


def main(arguments: list[str] | None = None) -> int:
    """Parse, compile, print."""
    parser = argparse.ArgumentParser(prog="python -m engine.kernels.aot", description=__doc__)
    parser.add_argument("--arch", type=int, nargs="*", default=list(CHIPS), choices=list(CHIPS))
    parser.add_argument("--only", default="", help="part of a kernel's or a case's name")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    print(HEAD)
    start, rows = time.perf_counter(), []
    for row in check_all(options.arch, options.jobs, options.only):
        rows.append(row)
        print(row, flush=True)
    failed = sum(row.fault is not None for row in rows)
    print(f"{len(rows)} kernels compiled, {failed} failed, {time.perf_counter() - start:.0f} s")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
