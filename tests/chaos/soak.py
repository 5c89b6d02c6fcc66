"""Many short requests, a third of them abandoned, and then: is everything as small as before?

``python -m tests.chaos.soak --requests 100000``, or ``--minutes 10``
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.chaos.__main__ import DEFAULT_MODEL
from tests.chaos.asking import make_session
from tests.chaos.memory import MIB, Growth, take_sample
from tests.chaos.rest import is_at_rest
from tests.chaos.target import Target, running_target
from tests.tiny_models import make_tiny_model

# Few blocks, all of them soon touched: what grows later is no cache.
FLAGS = ["--max-model-len", "256", "--num-gpu-blocks-override", "160", "--max-num-seqs", "32"]
NUM_SAMPLES = 30
MOST_GROWN_BYTES = 12 * MIB
_REST_WITHIN_S = 60.0
_LEAVES_AFTER_S = 0.15
_GONE = (aiohttp.ClientError, ConnectionError, TimeoutError)


@dataclass
class Report:
    """What a soak saw."""

    growth: Growth = field(default_factory=Growth)
    statuses: Counter[int] = field(default_factory=Counter)
    num_sent: int = 0
    num_left: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing grew, nothing was held and nothing failed."""
        return not self.problems

    def describe(self) -> str:
        """The figures."""
        head = (
            f"requests={self.num_sent} answers={dict(self.statuses)} left={self.num_left} seconds={self.seconds:.0f} "
            f"samples={len(self.growth.samples)} problems={len(self.problems)}"
        )
        return "\n".join([head, self.growth.describe(), *(f"  PROBLEM {problem}" for problem in self.problems)])


class Soak:
    """The same seed sends the same requests."""

    def __init__(self, target: Target, seed: int, aborts: float, concurrency: int) -> None:
        self._target = target
        self._rng = random.Random(seed)
        self._aborts = aborts
        self._concurrency = concurrency
        self.report = Report()

    async def run(self, rounds: Iterator[Iterator[object]], say: Callable[[str], None]) -> Report:
        """Send a request for each item of a round, and have a look at the box at rest after each round."""
        started = time.monotonic()
        async with make_session(self._target.box.url, None) as self._session:
            for todo in rounds:
                await asyncio.gather(*(self._client(todo) for _ in range(self._concurrency)))
                await asyncio.to_thread(self._sample)
                say(f"{self.report.num_sent} requests {self._brief()}")
        self.report.seconds = time.monotonic() - started
        self.report.problems += self.report.growth.problems(MOST_GROWN_BYTES)
        wrong = {status: count for status, count in self.report.statuses.items() if status not in (200, 400)}
        if wrong:
            self.report.problems.append(f"answers that are neither right nor refused: {wrong}")
        return self.report

    async def _client(self, todo: Iterator[object]) -> None:
        for _ in todo:
            self.report.num_sent += 1
            path, body = self._make_request()
            leaves = self._rng.random() < self._aborts
            try:
                async with asyncio.timeout(self._rng.uniform(0, _LEAVES_AFTER_S) if leaves else None):
                    await self._ask(path, body)
            except _GONE as error:
                if not leaves:
                    self.report.problems.append(f"{path}: {type(error).__name__}: {error}")
                self.report.num_left += 1

    async def _ask(self, path: str, body: dict[str, Any]) -> None:
        async with self._session.post(path, json=body) as response:
            await response.read()
            self.report.statuses[response.status] += 1

    def _make_request(self) -> tuple[str, dict[str, Any]]:
        """Every one another prompt, so that caches have to let go of something."""
        prompt = "".join(self._rng.choices("abcdefgh ", k=self._rng.randrange(4, 80)))
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": self._rng.randrange(1, 7), "temperature": 1}
        extras: list[dict[str, Any]] = [
            {},
            {"logprobs": 2},
            {"n": 2},
            {"stop": ["e", "xyz"]},
            {"structured_outputs": {"regex": f"[{prompt.strip() or 'a'}]{{1,9}}"}},
            {"logit_bias": {"5": 3.0}, "presence_penalty": 0.5},
            {"temperature": -1},  # refused
        ]
        return "/v1/completions", body | self._rng.choice(extras) | {"stream": self._rng.random() < 0.5}

    def _sample(self) -> None:
        num_requests = self.report.num_sent
        try:
            self._target.box.wait_until(lambda: is_at_rest(self._target.box.url), _REST_WITHIN_S)
        except AssertionError as error:
            self.report.problems.append(f"not at rest after {num_requests} requests: {str(error)[:300]}")
        self.report.growth.samples.append(take_sample(self._target, num_requests))

    def _brief(self) -> str:
        held = self.report.growth.samples[-1].held
        return " ".join(f"{name.replace(' ', '_')}={held[name].pss_bytes / MIB:.0f}MiB" for name in sorted(held))


def rounds_of(num_requests: int) -> Iterator[Iterator[object]]:
    """As many requests in equal rounds."""
    for _ in range(NUM_SAMPLES):
        yield iter(range(-(-num_requests // NUM_SAMPLES)))


def rounds_for(minutes: float) -> Iterator[Iterator[object]]:
    """Rounds that together take as long, and the time that the looks between them take."""
    for _ in range(NUM_SAMPLES):
        ends_s = time.monotonic() + 60 * minutes / NUM_SAMPLES
        yield itertools.takewhile(lambda _, ends_s=ends_s: time.monotonic() < ends_s, itertools.repeat(None))


def run_soak(
    model: Path,
    rounds: Iterator[Iterator[object]],
    seed: int,
    *,
    aborts: float = 0.3,
    concurrency: int = 24,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Against a fresh box, which is looked at after each of the rounds."""
    with running_target(model, FLAGS) as target:
        return asyncio.run(Soak(target, seed, aborts, concurrency).run(rounds, say))


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.soak",
        description="Start a box and send it many short requests, some of which are abandoned; report how the memory "
        "of each process grows, and fail where it does.",
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--requests", type=int, default=100_000, help="how many [100000]")
    amount.add_argument("--minutes", type=float, help="how long, instead")
    parser.add_argument("--aborts", type=float, default=0.3, help="share of requests that are abandoned [0.3]")
    parser.add_argument("--concurrency", type=int, default=24, help="clients at once [24]")
    parser.add_argument("--seed", type=int, default=1, help="repeats a run [1]")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="baked model folder [the default model]")
    parser.add_argument("--tiny", action="store_true", help="a tiny random model instead: several times faster")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model("llama", Path(folder)).baked if args.tiny else args.model
        report = run_soak(
            model,
            rounds_of(args.requests) if args.minutes is None else rounds_for(args.minutes),
            args.seed,
            aborts=args.aborts,
            concurrency=args.concurrency,
            say=lambda line: print(line, flush=True),
        )
    print(report.describe())
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
