"""Ten times what a box can do, for a minute: who is accepted is served in time, all others are told to come again.

``python -m tests.chaos.overload``; the bounds are for a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.chaos.__main__ import DEFAULT_MODEL
from tests.chaos.asking import make_session
from tests.chaos.target import running_target

OVERLOAD = 10
MAX_RUNNING = 8
MAX_QUEUED = 16
FLAGS = [
    *("--kv-cache-memory", "512MiB", "--max-num-seqs", str(MAX_RUNNING)),
    *("--max-num-queued-reqs", str(MAX_QUEUED)),
]
REFUSED_WITHIN_S = 1.0
PROBED_WITHIN_S = 1.0
SLOWER_AFTERWARDS = 1.5
_PROBES = ("/livez", "/readyz", "/health")
_CALIBRATION = 40
_FIRST_TOKEN = re.compile(rb'"content":"[^"]')
_SLACK = 2.0  # on the bound of the time to first token: the queue's length over the rate of service


@dataclass
class Report:
    """What an overload saw; times in seconds."""

    rate: float = 0.0  # requests a second that the box serves by itself
    statuses: Counter[int] = field(default_factory=Counter)
    first_token_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    probe_s: list[float] = field(default_factory=list)
    before_s: float = 0.0
    after_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def bound_s(self) -> float:
        """The longest that an accepted request waits: everybody who may be before it, at the rate of service."""
        return _SLACK * (MAX_QUEUED + MAX_RUNNING + 1) / self.rate if self.rate else math.inf

    @property
    def problems(self) -> list[str]:
        """What was promised and did not hold."""
        wrong = {status: count for status, count in self.statuses.items() if status not in (200, 429, 503)}
        checks = [
            (bool(wrong), f"statuses {wrong}"),
            (not self.refused_s, "nobody was refused"),
            (percentile(self.first_token_s, 99) > self.bound_s, f"p99 TTFT over {self.bound_s:.1f} s"),
            (percentile(self.refused_s, 99) > REFUSED_WITHIN_S, f"p99 of refusals over {REFUSED_WITHIN_S:g} s"),
            (max(self.probe_s, default=0) > PROBED_WITHIN_S, f"a probe took over {PROBED_WITHIN_S:g} s"),
            (self.after_s > SLOWER_AFTERWARDS * self.before_s, "slower afterwards than before"),
        ]
        return [*self.failures, *(text for is_wrong, text in checks if is_wrong)]

    def describe(self) -> str:
        """The figures."""
        lines = [
            f"serves {self.rate:.1f} requests/s; statuses {dict(self.statuses)}",
            f"TTFT of the accepted: p50 {percentile(self.first_token_s, 50):.2f} s, "
            f"p99 {percentile(self.first_token_s, 99):.2f} s (bound {self.bound_s:.1f} s)",
            f"refusals: p50 {percentile(self.refused_s, 50):.3f} s, p99 {percentile(self.refused_s, 99):.3f} s",
            f"probes: p50 {percentile(self.probe_s, 50):.3f} s, longest {max(self.probe_s, default=0):.3f} s",
            f"alone: {self.before_s:.3f} s before, {self.after_s:.3f} s afterwards",
        ]
        return "\n".join([*lines, *(f"  PROBLEM {problem}" for problem in self.problems)])


class Overload:
    """One run against a box at `url`."""

    def __init__(self, url: str, key: str | None, model: str) -> None:
        self._url, self._key = url, key
        self._body = {"model": model, "max_tokens": 16, "temperature": 0, "ignore_eos": True, "stream": True}
        self._number = 0
        self._is_over = False
        self.report = Report()

    async def run(self, seconds: float, say: Callable[[str], None]) -> Report:
        """Measure alone, measure what it can do, push, measure alone again."""
        report = self.report
        async with make_session(self._url, self._key) as self._session:
            report.before_s = await self._time_alone()
            report.rate = await self._measure_rate()
            say(f"alone {report.before_s:.2f} s, serves {report.rate:.1f} requests/s; {OVERLOAD} times that now")
            report.statuses.clear()
            report.first_token_s.clear()
            probes = asyncio.create_task(self._probe())
            await self._push(seconds, say)
            self._is_over = True
            await probes
            report.after_s = await self._time_alone()
        return report

    async def _push(self, seconds: float, say: Callable[[str], None]) -> None:
        """Requests arrive at ten times the rate of service, whatever becomes of the earlier ones."""
        tasks: set[asyncio.Task[None]] = set()
        started = said = time.monotonic()
        num_sent = 0
        while (now := time.monotonic()) < started + seconds:
            due = int((now - started) * self.report.rate * OVERLOAD)
            for _ in range(due - num_sent):
                tasks.add(task := asyncio.create_task(self._ask()))
                task.add_done_callback(tasks.discard)
            num_sent = max(due, num_sent)
            if now > said + 5:
                say(f"{now - started:.0f} s: {num_sent} sent, {len(tasks)} open, answers {dict(self.report.statuses)}")
                said = now
            await asyncio.sleep(0.02)
        await asyncio.gather(*tasks)

    async def _ask(self) -> None:
        self._number += 1
        body = self._body | {"messages": [{"role": "user", "content": f"Tell me of the number {self._number}"}]}
        started = time.monotonic()
        try:
            async with self._session.post("/v1/chat/completions", json=body) as response:
                self.report.statuses[response.status] += 1
                if response.status != 200:
                    await self._note_refusal(response, started)
                else:
                    await self._note_answer(response, started)
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            self.report.failures.append(f"{type(error).__name__}: {error}")

    async def _note_refusal(self, response: aiohttp.ClientResponse, started: float) -> None:
        await response.read()
        self.report.refused_s.append(time.monotonic() - started)
        if "retry-after" not in response.headers:
            self.report.failures.append(f"status {response.status} without Retry-After")

    async def _note_answer(self, response: aiohttp.ClientResponse, started: float) -> None:
        text, has_begun = b"", False
        async for part in response.content.iter_any():
            text += part
            if not has_begun and _FIRST_TOKEN.search(text):
                has_begun = True
                self.report.first_token_s.append(time.monotonic() - started)
        if b"data: [DONE]" not in text or b'"error"' in text:
            self.report.failures.append(f"a stream without an end: {text[-200:]!r}")

    async def _time_alone(self) -> float:
        """The median of a few requests with nobody else there."""
        times = []
        for _ in range(5):
            started = time.monotonic()
            await self._ask()
            times.append(time.monotonic() - started)
        return sorted(times)[2]

    async def _measure_rate(self) -> float:
        """As many at once as may run."""
        gate = asyncio.Semaphore(MAX_RUNNING)

        async def ask() -> None:
            async with gate:
                await self._ask()

        started = time.monotonic()
        await asyncio.gather(*(ask() for _ in range(_CALIBRATION)))
        return _CALIBRATION / (time.monotonic() - started)

    async def _probe(self) -> None:
        """As Kubernetes and load balancers do it: a connection each."""
        number = 0
        while not self._is_over:
            started = time.monotonic()
            path = _PROBES[number % len(_PROBES)]
            async with self._session.get(path, headers={"connection": "close"}) as response:
                await response.read()
                if response.status != 200:
                    self.report.failures.append(f"{path} said {response.status}")
            self.report.probe_s.append(time.monotonic() - started)
            number += 1
            await asyncio.sleep(0.2)


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that so many percent are not above; 0 of nothing."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)] if values else 0.0


def run_overload(model: Path, seconds: float, say: Callable[[str], None] = lambda line: None) -> Report:
    """Against a fresh box with a short queue."""
    with running_target(model, FLAGS) as target:
        return asyncio.run(Overload(target.box.url, None, model.name).run(seconds, say))


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.overload",
        description=f"Start a box with a queue of {MAX_QUEUED}, send {OVERLOAD} times what it can serve, and look at "
        "who waits how long.",
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long [60]")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="baked model folder [the default model]")
    args = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)

    report = run_overload(args.model, args.seconds, say)
    print(report.describe())
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
