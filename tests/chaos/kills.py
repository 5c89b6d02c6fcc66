"""The proof that the engine's death is a pause: many requests in flight, the engine killed again and again, all answers
right at the first asking. ``python -m tests.chaos.kills --requests 200 --kills 10 [--how stop]``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.box.running_box import RunningBox, gauge, running_box
from tests.chaos.asking import LostError, RefusedError, WrongError, ask, make_session
from tests.chaos.cases import Case, make_cases

DEFAULT_MODEL = Path(__file__).resolve().parents[2] / ".cache" / "models" / "SmolLM2-135M-Instruct"
FLAGS = [
    *("--kv-cache-memory", "768MiB", "--api-workers", "2"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--no-enable-prompt-tokens-details"),
    *("--max-resumes", "100", "--engine-wait", "600"),
]
HOW = {"kill": psutil.Process.kill, "stop": psutil.Process.suspend, "terminate": psutil.Process.terminate}
STOP_TIMEOUT_S = 5  # of the box whose engine is stopped instead of killed
MAX_ROUNDS = 20
ENGINE_WITHIN_S = 300.0
ANSWERS_WITHIN_S = 3600.0  # all at once, on a machine that does other things as well


@dataclass
class Outcome:
    """What a run saw. All requests of a round are in flight at once; there are as many rounds as the kills need."""

    num_requests: int = 0
    num_right: int = 0
    num_kills: int = 0
    rounds: int = 0
    undisturbed_s: float = 0.0
    disturbed_s: list[float] = field(default_factory=list)
    resumed: float = 0.0
    restarts: float = 0.0
    in_flight: list[int] = field(default_factory=list)  # at each kill
    problems: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """All of it, in a few lines."""
        rounds = " ".join(f"{seconds:.1f}" for seconds in self.disturbed_s)
        lines = [
            f"requests={self.num_requests} right={self.num_right} wrong={len(self.problems)} kills={self.num_kills} "
            f"restarts={self.restarts:.0f} resumed={self.resumed:.0f}",
            f"undisturbed_s={self.undisturbed_s:.1f} rounds_s={rounds} in_flight_at_kills={self.in_flight}",
        ]
        return "\n".join([*lines, *(f"PROBLEM {problem}" for problem in self.problems[:20])])


class Killings:
    """One box, its requests, and who kills its engine."""

    def __init__(self, box: RunningBox, cases: list[Case], how: str, seed: int, say: Callable[[str], None]) -> None:
        self._box = box
        self._cases = cases
        self._how = HOW[how]
        self._rng = random.Random(seed)
        self._say = say
        self._expected: list[Any] = []
        self._num_open = 0
        self.outcome = Outcome(num_requests=0)

    async def run(self, kills: int) -> Outcome:
        """Ask everything once undisturbed, then as often as it takes to kill the engine so many times."""
        self._say(f"learning the undisturbed answers of {len(self._cases)} requests")
        started = time.monotonic()
        self._expected = await self._ask_all()
        self.outcome.undisturbed_s = time.monotonic() - started
        failed = [str(answer) for answer in self._expected if isinstance(answer, Exception)]
        if failed:
            raise AssertionError(f"not even undisturbed: {failed[:5]}")
        while self.outcome.num_kills < kills and self.outcome.rounds < MAX_ROUNDS:
            await self._run_round(kills)
        self.outcome.resumed = await asyncio.to_thread(gauge, self._box, "breadbox:resumed_requests_total")
        self.outcome.restarts = await asyncio.to_thread(gauge, self._box, "breadbox:restarts_total", "engine-0")
        return self.outcome

    async def _run_round(self, kills: int) -> None:
        started = time.monotonic()
        killer = asyncio.create_task(self._kill(kills))
        answers = await self._ask_all()
        killer.cancel()
        await asyncio.gather(killer, return_exceptions=True)
        outcome = self.outcome
        outcome.rounds += 1
        outcome.disturbed_s.append(time.monotonic() - started)
        outcome.num_requests += len(answers)
        for case, expected, answer in zip(self._cases, self._expected, answers, strict=True):
            if isinstance(answer, Exception):
                outcome.problems.append(f"{case.name}: {type(answer).__name__}: {answer}")
            elif _text_of(answer) != _text_of(expected):
                outcome.problems.append(
                    f"{case.name} differs: {_text_of(expected)[:400]} became {_text_of(answer)[:400]}"
                )
            else:
                outcome.num_right += 1
        self._say(f"round {outcome.rounds}: kills={outcome.num_kills} problems={len(outcome.problems)}")

    async def _ask_all(self) -> list[Any]:
        """Every case at once; its answer, or why there is none."""
        async with make_session(self._box.url, None, answer_within_s=ANSWERS_WITHIN_S) as session:

            async def ask_one(case: Case) -> Any:
                self._num_open += 1
                try:
                    return await ask(session, case)
                except (LostError, RefusedError, WrongError) as error:
                    return error
                finally:
                    self._num_open -= 1

            return await asyncio.gather(*(ask_one(case) for case in self._cases))

    async def _kill(self, kills: int) -> None:
        """When random shares of the requests have their answers, mostly of an engine that works, now and then of one
        that only starts.
        """
        shares = sorted(self._rng.uniform(0, 0.9) for _ in range(kills - self.outcome.num_kills))
        for share in shares:
            while self._num_open > (1 - share) * len(self._cases):  # noqa: ASYNC110 - seldom, and any moment will do
                await asyncio.sleep(0.01)
            if self._rng.random() < 0.8:
                await self._await_engine()
            await asyncio.sleep(self._rng.uniform(0, 1))
            engine = await asyncio.to_thread(self._box.find, "engine", "--index 0")
            if engine and self._num_open:
                self.outcome.in_flight.append(self._num_open)
                self._say(f"kill {self.outcome.num_kills + 1} with {self._num_open} requests in flight")
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._how(engine[-1])
                    self.outcome.num_kills += 1
                    await asyncio.to_thread(engine[-1].wait, ENGINE_WITHIN_S)

    async def _await_engine(self) -> None:
        deadline = time.monotonic() + ENGINE_WITHIN_S
        async with make_session(self._box.url, None) as session:
            while time.monotonic() < deadline:
                async with session.get("/health") as response:
                    if response.status == 200:
                        return
                await asyncio.sleep(0.05)


def _text_of(answer: Any) -> str:
    return json.dumps(answer, sort_keys=True, ensure_ascii=False)


def make_load(model: str, count: int, seed: int) -> list[Case]:
    """So many requests, of all kinds in turn."""
    cases = make_cases(seed, model, copies=1)
    while len(cases) < count:
        cases += make_cases(seed + len(cases), model, copies=1)
    return cases[:count]


def run_killings(
    model: Path, requests: int, kills: int, how: str, seed: int, say: Callable[[str], None] = lambda line: None
) -> Outcome:
    """Against a fresh box."""
    flags = [*FLAGS, "--served-model-name", model.name]
    if how == "stop":
        flags += ["--engine-timeout", str(STOP_TIMEOUT_S)]
    with running_box(model, flags=flags) as box:
        box.wait_ready()
        killings = Killings(box, make_load(model.name, requests, seed), how, seed, say)
        return asyncio.run(killings.run(kills))


def main() -> int:
    """Exit status: 0 where every answer was right."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.kills", description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="in flight at once [200]")
    parser.add_argument("--kills", type=int, default=10, help="of the engine, at random moments [10]")
    parser.add_argument("--how", choices=sorted(HOW), default="kill", help="SIGKILL, SIGSTOP or SIGTERM [kill]")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="repeats a run")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="baked model folder [the default model]")
    args = parser.parse_args()
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {line}", flush=True)

    say(f"seed {args.seed}")
    outcome = run_killings(args.model, args.requests, args.kills, args.how, args.seed, say)
    kinds = Counter(case.name for case in make_load(args.model.name, args.requests, args.seed))
    print(f"{len(kinds)} kinds of requests; {outcome.describe()}")
    return 1 if outcome.problems or outcome.num_kills < args.kills else 0


if __name__ == "__main__":
    sys.exit(main())
