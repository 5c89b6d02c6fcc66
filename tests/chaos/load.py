"""A mixed load whose every answer is known: learned once undisturbed, then asked for again and again."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.chaos.asking import LostError, RefusedError, WrongError, ask, ask_and_leave, make_session
from tests.chaos.cases import Case
from tests.chaos.timeline import Timeline

MAX_ATTEMPTS = 100
GIVE_UP_AFTER_S = 900.0
_PAUSE_S = 0.3


@dataclass
class Tally:
    """What became of the requests."""

    num_answered: int = 0
    num_left: int = 0
    lost: int = 0  # connections that a fault took; asked again
    refused: Counter[int] = field(default_factory=Counter)  # by status; asked again
    problems: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


class Load:
    """Asks `cases` with `concurrency` clients at once until it is told to stop; some are slow, some leave early."""

    def __init__(self, url: str, key: str | None, cases: list[Case], timeline: Timeline, seed: int) -> None:
        self._url, self._key = url, key
        self._cases = cases
        self._timeline = timeline
        self._rng = random.Random(seed)
        self._expected: dict[int, str] = {}
        self._is_over = asyncio.Event()
        self.tally = Tally()

    async def learn(self, concurrency: int = 8) -> None:
        """Ask everything once. Raises WrongError and the others: the box must be whole now."""
        gate = asyncio.Semaphore(concurrency)

        async def learn_one(number: int, case: Case) -> None:
            async with gate:
                self._expected[number] = _text_of(await ask(self._session, case))

        async with make_session(self._url, self._key) as self._session:
            await asyncio.gather(*(learn_one(*item) for item in enumerate(self._cases)))

    async def run(self, concurrency: int) -> None:
        """Until `stop`; then everything in flight is still waited for."""
        async with make_session(self._url, self._key) as self._session:
            await asyncio.gather(*(self._client() for _ in range(concurrency)))

    def stop(self) -> None:
        """No further requests."""
        self._is_over.set()

    async def _client(self) -> None:
        while not self._is_over.is_set():
            number = self._rng.randrange(len(self._cases))
            kind = self._rng.random()
            if kind < 0.15:
                await ask_and_leave(self._session, self._cases[number], self._rng.uniform(0.01, 1.0))
                self.tally.num_left += 1
            else:
                await self._ask(number, is_slow=kind < 0.25)

    async def _ask(self, number: int, is_slow: bool) -> None:
        """Ask until there is an answer: only a fault may have taken the earlier ones."""
        started = time.monotonic()
        for _ in range(MAX_ATTEMPTS):
            attempted = time.monotonic()
            if attempted > started + GIVE_UP_AFTER_S:
                break
            try:
                answer = await ask(self._session, self._cases[number], is_slow=is_slow)
            except (LostError, RefusedError, WrongError, aiohttp.ClientError) as error:
                if not self._excuse(number, error, attempted):
                    return
                await asyncio.sleep(_PAUSE_S)
            else:
                self._judge(number, answer, started)
                return
        self._note(number, started, f"not answered within {time.monotonic() - started:.0f} s")

    def _excuse(self, number: int, error: Exception, attempted: float) -> bool:
        if isinstance(error, LostError) and self._timeline.excuses_loss(attempted):
            self.tally.lost += 1
            return True
        if isinstance(error, RefusedError) and self._timeline.excuses_refusal(attempted):
            self.tally.refused[error.status] += 1
            return True
        self._note(number, attempted, f"{type(error).__name__}: {error}")
        return False

    def _judge(self, number: int, answer: Any, started: float) -> None:
        self.tally.num_answered += 1
        self.tally.slowest_s = max(self.tally.slowest_s, time.monotonic() - started)
        text = _text_of(answer)
        if text != self._expected[number]:
            self._note(number, started, f"differs: {_difference(self._expected[number], text)}")

    def _note(self, number: int, since_s: float, problem: str) -> None:
        case, going_on = self._cases[number], self._timeline.describe_since(since_s)
        self.tally.problems.append(f"{case.name} ({case.path}), while {going_on}: {problem}")


def _text_of(answer: Any) -> str:
    return json.dumps(answer, sort_keys=True, ensure_ascii=False)


def _difference(expected: str, text: str) -> str:
    """Around the first place where they differ."""
    at = next((i for i, (a, b) in enumerate(zip(expected, text, strict=False)) if a != b), len(expected))
    start = max(0, at - 80)
    return f"expected …{expected[start : at + 80]!r}, came …{text[start : at + 80]!r}"
