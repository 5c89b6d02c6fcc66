"""The command: send, report, exit with 1 where something happened that must not."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys

from tests.e2e.fuzz.campaign import Campaign


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.fuzz", description="Random requests against a box.")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--key", default=os.environ.get("BOX_KEY"), help="an API key of the box [BOX_KEY]")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="repeats a run")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    report = asyncio.run(Campaign(args.base_url, args.key, args.seed, args.concurrency).run(args.requests))
    print(report.describe())
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
