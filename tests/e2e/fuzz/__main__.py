"""The command: send, report, exit with 1 where something happened that must not."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Callable

from tests.chaos.__main__ import DEFAULT_MODEL
from tests.chaos.memory import MIB, Growth, take_sample
from tests.chaos.target import Target, running_target
from tests.e2e.fuzz.campaign import Campaign, Report

FLAGS = [
    *("--max-model-len", "2048", "--kv-cache-memory", "128MiB"),  # soon filled: what grows later is no cache
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
]
MOST_GROWN_BYTES = 64 * MIB  # caches of compiled grammars included


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.fuzz", description="Random requests against a box.")
    parser.add_argument("--base-url", help="a running box; default: one of its own, whose memory is watched, too")
    parser.add_argument("--key", default=os.environ.get("BOX_KEY"), help="an API key of the box [BOX_KEY]")
    parser.add_argument("--requests", type=int, default=20_000, help="how many [20000]")
    parser.add_argument("--concurrency", type=int, default=8, help="clients at once [8]")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="repeats a run")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)

    def run(url: str, look: Callable[[int], None]) -> Report:
        return asyncio.run(Campaign(url, args.key, args.seed, args.concurrency, look).run(args.requests))

    if args.base_url:
        report, problems = run(args.base_url, _say), []
    else:
        with running_target(DEFAULT_MODEL, FLAGS) as target:
            growth = Growth()
            report = run(target.box.url, lambda num_sent: _watch(target, growth, num_sent))
            problems = growth.problems(MOST_GROWN_BYTES)
            print(growth.describe())
    print("\n".join([report.describe(), *problems]))
    return 0 if report.is_clean and not problems else 1


def _say(num_sent: int) -> None:
    print(f"{num_sent} requests", flush=True)


def _watch(target: Target, growth: Growth, num_sent: int) -> None:
    growth.samples.append(take_sample(target, num_sent))
    _say(num_sent)


if __name__ == "__main__":
    sys.exit(main())
