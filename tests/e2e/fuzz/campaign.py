"""Sends random requests to a box and counts what must never happen."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.e2e.fuzz import raw_http
from tests.e2e.fuzz.attacks import MARK, Attack, make_attack, perform
from tests.e2e.fuzz.bodies import VALID, make_body
from tests.e2e.fuzz.damage import CONTENT_TYPES, damage
from tests.e2e.fuzz.grammars import constrain
from tests.e2e.fuzz.limits import limit

ANSWER_WITHIN_S = 600.0  # a starved machine is slow; what never comes is still found
RAW_WITHIN_S = 5.0
ATTACK_WITHIN_S = 1.0  # a proxy that still waits for a body's end will say nothing
NUM_LOOKS = 30
NOT_OUR_HTTP = (501, 505)  # a transfer coding, a version of HTTP that nobody speaks: only the proxy says these
CANARY = {"messages": [{"role": "user", "content": "Say OK"}], "max_tokens": 8, "temperature": 0}
# A route's requests as they are: what the others are compared with.
_GENERATING = ("/v1/chat/completions", "/v1/completions", "/invocations")
_STATUS_LINE = re.compile(rb"HTTP/1\.\d (\d{3}) ")
_LEAKS = (b"root:x:", b"\nX-Injected:", b'"run_dir"')
_BROKEN_EVENT = re.compile(r'"(server_error|api_error|internal_error)"')


@dataclass
class Report:
    """What came back."""

    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    restarts: float = 0.0
    is_canary_unchanged: bool = True
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether nothing happened that must not."""
        return not self.problems and not self.restarts and self.is_canary_unchanged

    def describe(self) -> str:
        """One line, then the first problems."""
        num_5xx = sum(count for status, count in self.statuses.items() if status >= 500 and status not in NOT_OUR_HTTP)
        counts = " ".join(f"{status}:{count}" for status, count in sorted(self.statuses.items()))
        line = (
            f"requests={sum(self.statuses.values())} 5xx={num_5xx} problems={len(self.problems)} "
            f"restarts={self.restarts:g} canary={'unchanged' if self.is_canary_unchanged else 'CHANGED'} "
            f"seconds={self.seconds:.0f} statuses: {counts}"
        )
        return "\n".join([line, *self.problems[:10]])


class Campaign:
    """One run; the same seed sends the same requests. `look` is called now and then with how many were sent."""

    def __init__(
        self,
        base_url: str,
        key: str | None,
        seed: int,
        concurrency: int = 8,
        look: Callable[[int], None] = lambda num_sent: None,
    ) -> None:
        self._look = look
        self._url = base_url.rstrip("/")
        self._key = key or "none"
        self._rng = random.Random(seed)
        self._concurrency = concurrency
        self.report = Report()

    async def run(self, num_requests: int) -> Report:
        """Send them all."""
        headers = {"authorization": f"Bearer {self._key}"}
        limits = httpx.Limits(max_connections=self._concurrency + 2)
        started = time.monotonic()
        async with httpx.AsyncClient(
            base_url=self._url, headers=headers, timeout=ANSWER_WITHIN_S, limits=limits
        ) as self._client:
            self._document = (await self._client.get("/openapi.json")).raise_for_status().json()
            self._model = (await self._client.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
            self._paths = [path for path in VALID if path in self._document["paths"]]
            canary, restarts = await self._ask_canary(), await self._count_restarts()
            for start in range(0, num_requests, per_look := -(-num_requests // NUM_LOOKS)):
                todo = iter(range(start, min(start + per_look, num_requests)))
                await asyncio.gather(*(self._work(todo) for _ in range(self._concurrency)))
                self._look(start + per_look)
            self.report.is_canary_unchanged = await self._ask_canary() == canary
            self.report.restarts = await self._count_restarts() - restarts
        self.report.seconds = time.monotonic() - started
        return self.report

    async def _work(self, todo: Any) -> None:
        for _ in todo:
            await self._rng.choices(_KINDS, _WEIGHTS)[0](self)

    async def _send_made(self) -> None:
        path = self._rng.choice(self._paths)
        await self._send(path, self._make(path), {"content-type": "application/json"})

    async def _send_damaged(self) -> None:
        path = self._rng.choice(self._paths)
        body = damage(self._rng, self._make(path))
        await self._send(path, body, {"content-type": self._rng.choice(CONTENT_TYPES)})

    async def _send_constrained(self) -> None:
        path = self._rng.choice([path for path in _GENERATING if path in self._paths])
        body = constrain(self._rng, path, VALID[path] | {"model": self._model})
        await self._send(path, json.dumps(limit(body)).encode(), {"content-type": "application/json"})

    async def _send_barely_http(self) -> None:
        await self._send_raw(raw_http.make_request(self._rng, self._key))

    def _make(self, path: str) -> bytes:
        return json.dumps(limit(make_body(self._rng, path, self._document, self._model))).encode()

    async def _send(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        try:
            response = await self._client.post(path, content=body, headers=headers)
        except httpx.HTTPError as error:
            self._note(path, body, f"{type(error).__name__}: {error}")
            return
        self.report.statuses[response.status_code] += 1
        self._judge(path, body, response.status_code, response.headers.get("content-type", ""), response.text)

    def _judge(self, path: str, body: bytes, status: int, content_type: str, text: str) -> None:
        if status >= 500:
            self._note(path, body, f"status {status}: {text[:300]}")
        elif content_type.startswith("text/event-stream"):
            if _BROKEN_EVENT.search(text) and '"error"' in text:
                self._note(path, body, f"an error event: {text[-400:]}")
        elif status >= 400 and not _is_envelope(text):
            self._note(path, body, f"status {status} without the envelope: {text[:300]}")

    async def _send_attack(self) -> None:
        attack = make_attack(self._rng, self._key)
        answer = await perform(*self._address, attack, ATTACK_WITHIN_S)
        statuses = [int(status) for status in _STATUS_LINE.findall(answer)]
        self.report.statuses[statuses[0] if statuses else 0] += 1
        self._judge_attack(attack, answer, statuses)
        # Whoever is next on a connection behind the proxy must get his own answer.
        for _ in range(2):
            response = await self._client.get("/version")
            if response.status_code != 200 or "version" not in response.json():
                self._note("attack", b"".join(attack.parts), f"the next client got {response.status_code}")

    def _judge_attack(self, attack: Attack, answer: bytes, statuses: list[int]) -> None:
        sent = b"".join(attack.parts)
        if len(statuses) > max(attack.max_answers, 1):
            self._note("attack", sent, f"{len(statuses)} answers: {answer[:300]!r}")
        if any(status >= 500 and status not in NOT_OUR_HTTP for status in statuses):
            self._note("attack", sent, f"{answer[:300]!r}")
        if any(leak in answer for leak in _LEAKS) or MARK in answer.split(b"\r\n\r\n")[0]:
            self._note("attack", sent, f"it got through: {answer[:300]!r}")

    @property
    def _address(self) -> tuple[str, int]:
        address = urlsplit(self._url)
        return address.hostname or "", address.port or 80

    async def _send_raw(self, request: bytes) -> None:
        answer = await raw_http.send(*self._address, [request], RAW_WITHIN_S)
        head, _, _ = answer.rpartition(b"\r\n\r\n")
        found = _STATUS_LINE.match(answer)
        status = int(found[1]) if found else 0
        self.report.statuses[status] += 1
        if status >= 500 and status not in NOT_OUR_HTTP:
            self._note("raw", request, f"{answer[:300]!r}")
        elif status >= 400 and b"application/json" not in head.lower() and not request.startswith(b"HEAD"):
            self._note("raw", request, f"not in the envelope: {answer[:300]!r}")

    def _note(self, path: str, body: bytes, problem: str) -> None:
        self.report.problems.append(f"{path} {body[:600]!r} → {problem}")

    async def _ask_canary(self) -> str:
        response = await self._client.post("/v1/chat/completions", json=CANARY)
        return str(response.raise_for_status().json()["choices"][0]["message"]["content"])

    async def _count_restarts(self) -> float:
        """Of every program of the box."""
        text = (await self._client.get("/metrics")).raise_for_status().text
        lines = [line for line in text.splitlines() if line.startswith("breadbox:restarts_total")]
        assert lines, "the box does not count restarts"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


_KINDS = (
    Campaign._send_made,
    Campaign._send_damaged,
    Campaign._send_constrained,
    Campaign._send_barely_http,
    Campaign._send_attack,
)
_WEIGHTS = (45, 20, 20, 8, 7)


def _is_envelope(text: str) -> bool:
    try:
        error = json.loads(text)["error"]
        return isinstance(error["message"], str) and isinstance(error["type"], str)
    except (ValueError, KeyError, TypeError):
        return False
