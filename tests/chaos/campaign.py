"""One run of chaos: learn the answers, then break one thing after another under load, then count."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.chaos.asking import hold_half_open
from tests.chaos.cases import make_cases
from tests.chaos.faults import FAULTS, Fault, NotHereError
from tests.chaos.load import Load
from tests.chaos.rest import is_at_rest
from tests.chaos.target import Target, running_target
from tests.chaos.timeline import Timeline

FLAGS = [
    *("--kv-cache-memory", "512MiB", "--shutdown-timeout", "10"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    # A request may be in flight while the engine dies again and again: that is the point here.
    *("--max-resumes", "100"),
]
AT_REST_WITHIN_S = 60.0
_HALF_OPEN = (
    b"",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: box\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: box\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{",
)


@dataclass
class Count:
    """How often a fault struck, and the longest time until the box was whole again."""

    times: int = 0
    slowest_s: float = 0.0


@dataclass
class Report:
    """What a run saw."""

    seed: int
    load: Load
    minutes: float = 0.0
    faults: dict[str, Count] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost and nothing was wrong."""
        return not self.problems and not self.load.tally.problems

    def progress(self) -> str:
        """One line."""
        tally, num_faults = self.load.tally, sum(count.times for count in self.faults.values())
        return (
            f"answered={tally.num_answered} left={tally.num_left} faults={num_faults} lost={tally.lost} "
            f"refused={tally.refused.total()} problems={len(tally.problems) + len(self.problems)}"
        )

    def describe(self) -> str:
        """Everything, as a table and the first problems."""
        lines = [
            f"seed={self.seed} minutes={self.minutes:.1f} {self.progress()} slowest_s={self.load.tally.slowest_s:.1f}"
        ]
        lines += [f"  {name:<26} {count.times:>4} times, whole again within {count.slowest_s:.1f} s"
                  for name, count in self.faults.items()]  # fmt: skip
        lines += [f"  {name:<26} left out: {why}" for name, why in self.left_out.items()]
        problems = [*self.problems, *self.load.tally.problems]
        return "\n".join([*lines, *(f"  PROBLEM {problem}" for problem in problems[:20])])


class Campaign:
    """Faults in random order under load, against a box of its own."""

    def __init__(self, target: Target, model: str, seed: int, say: Callable[[str], None]) -> None:
        self._target = target
        self._rng = random.Random(seed)
        self._say = say
        self._timeline = Timeline()
        self._num_told = 0
        self._load = Load(target.box.url, None, make_cases(seed, model), self._timeline, seed)
        self.report = Report(seed, self._load)

    async def run(self, minutes: float, concurrency: int, faults: tuple[Fault, ...]) -> Report:
        """Every fault once before any comes twice."""
        self._say("learning the undisturbed answers")
        await self._load.learn()
        started = time.monotonic()
        clients = asyncio.create_task(self._load.run(concurrency))
        half_open = asyncio.create_task(self._hold_half_open())
        try:
            for fault in self._shuffled(faults):
                if time.monotonic() > started + 60 * minutes:
                    break
                await self._break(fault)
                self.report.minutes = (time.monotonic() - started) / 60
                self._say(f"{fault.name}: {self.report.progress()}")
                self._tell_problems()
            self._load.stop()
            await clients
        finally:
            clients.cancel()
            half_open.cancel()
            await asyncio.gather(clients, half_open, return_exceptions=True)
        await asyncio.to_thread(self._check_rest)
        return self.report

    def _tell_problems(self) -> None:
        """At once: the run may be long."""
        problems = self._load.tally.problems
        for problem in problems[self._num_told :]:
            self._say(f"PROBLEM {problem}")
        self._num_told = len(problems)

    def _shuffled(self, faults: tuple[Fault, ...]) -> Iterator[Fault]:
        for _ in itertools.count():
            yield from self._rng.sample(faults, len(faults))

    async def _break(self, fault: Fault) -> None:
        await asyncio.sleep(self._rng.uniform(0.2, 2.5))
        try:
            with self._timeline.fault(fault.name, fault.takes_connections, fault.lingers_s) as window:
                await fault.strike(self._target, self._rng)
                await asyncio.to_thread(self._target.wait_whole)
        except NotHereError as error:
            self.report.left_out[fault.name] = str(error)
            return
        except AssertionError as error:
            raise BoxEndedError(f"after {fault.name}: {error}") from None
        count = self.report.faults.setdefault(fault.name, Count())
        count.times += 1
        count.slowest_s = max(count.slowest_s, window.end_s - window.start_s)

    async def _hold_half_open(self) -> None:
        address = urlsplit(self._target.box.url)
        assert address.hostname
        assert address.port
        while True:
            sent = self._rng.choice(_HALF_OPEN)
            holds = (hold_half_open(address.hostname, address.port, sent, self._rng.uniform(1, 10)) for _ in range(10))
            await asyncio.gather(*holds)

    def _check_rest(self) -> None:
        """With nobody there nothing is held, and nothing is left of programs that were killed."""
        try:
            self._target.box.wait_until(lambda: is_at_rest(self._target.box.url), AT_REST_WITHIN_S)
        except AssertionError as error:
            self.report.problems.append(f"not at rest: {str(error)[-2000:]}")
        masters = self._target.box.find("nginx: master"), self._target.box.find("engine", "--index")
        if any(len(found) != 1 for found in masters):
            self.report.problems.append(f"a program is there twice: {masters}")


class BoxEndedError(Exception):
    """The box did not survive."""


def run_campaign(
    model: Path,
    minutes: float,
    seed: int,
    concurrency: int,
    say: Callable[[str], None] = lambda line: None,
    faults: tuple[Fault, ...] = FAULTS,
) -> Report:
    """Against a fresh box. Raises BoxEndedError."""
    with running_target(model, FLAGS) as target:
        return asyncio.run(Campaign(target, model.name, seed, say).run(minutes, concurrency, faults))
