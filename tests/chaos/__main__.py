"""The command: break a box for some minutes, report, exit with 1 where an answer was lost or wrong."""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from tests.chaos.campaign import BoxEndedError, run_campaign
from tests.chaos.faults import FAULTS

DEFAULT_MODEL = Path(__file__).resolve().parents[2] / ".cache" / "models" / "SmolLM2-135M-Instruct"


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Start a box, load it, and kill, stop and starve its programs at random; every answer is compared "
        "with the undisturbed one.",
    )
    parser.add_argument(
        "--minutes", type=float, default=60, help="how long [60]; every fault comes about once a minute"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="repeats a run")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="baked model folder [the default model]")
    parser.add_argument("--concurrency", type=int, default=12, help="clients at once [12]")
    parser.add_argument("--only", default="", help="only faults whose name has this in it, such as engine or disk")
    args = parser.parse_args()
    faults = tuple(fault for fault in FAULTS if args.only in fault.name)
    if not faults:
        parser.error(f"no fault has {args.only!r} in its name: {', '.join(fault.name for fault in FAULTS)}")
    print(f"seed {args.seed}", flush=True)
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {line}", flush=True)

    try:
        report = run_campaign(args.model, args.minutes, args.seed, args.concurrency, say, faults)
    except BoxEndedError as error:
        print(f"the box ended: {error}")
        return 1
    print(report.describe())
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
