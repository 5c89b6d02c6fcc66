"""Attacks on the way through the proxy: two ways to read one request, lines in headers, long heads, paths, patience.

Each says how many answers its connection may get at most; whether another client's answer was harmed, the campaign sees
by asking something simple right afterwards.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.e2e.fuzz.raw_http import send

MARK = b"x-smuggled-mark"
_PAUSE_S = 0.05

# Length and coding that contradict each other, or that only one of two readers may understand.
FRAMINGS = [
    [b"Content-Length: 6", b"Transfer-Encoding: chunked"],
    [b"Transfer-Encoding: chunked", b"Content-Length: 4"],
    [b"Transfer-Encoding : chunked", b"Content-Length: 6"],
    [b"Transfer-Encoding: xchunked", b"Content-Length: 6"],
    [b"Transfer-Encoding:\tchunked", b"Content-Length: 6"],
    [b"Transfer-Encoding: chunked, identity", b"Content-Length: 6"],
    [b"Transfer-Encoding: identity, chunked"],
    [b"Transfer-Encoding: chunked", b"Transfer-Encoding: x"],
    [b"Transfer-Encoding: \x0bchunked", b"Content-Length: 6"],
    [b"Transfer_Encoding: chunked", b"Content-Length: 6"],
    [b"X: y", b" Transfer-Encoding: chunked", b"Content-Length: 6"],
    [b"Content-Length: 6", b"Content-Length: 60"],
    [b"Content-Length: 6, 6"],
    [b"Content-Length: +6"],
    [b"Content-Length: 0x6"],
    [b"Content-Length: 6 6"],
    [b"Content-Length : 6"],
    [b"Content-Length: 06"],
]
BODIES = [
    b"0\r\n\r\n",
    b"1\r\nZ\r\n0\r\n\r\n",
    b"1;x=\r\ny\r\nZ\r\n0\r\n\r\n",
    b"000000000000000000001\r\nZ\r\n0\r\n\r\n",
    b"-1\r\nZ\r\n0\r\n\r\n",
    b"ffffffffffffffff1\r\nZ\r\n0\r\n\r\n",
    b"1\nZ\n0\n\n",
    b"0\r\nX-A: b\r\n\r\n",
]
INJECTIONS = [
    b"X-Request-Id: a\r\rX-Injected: 1",
    b"X-Request-Id: a%0d%0aX-Injected: 1",
    b"X-Request-Id: a\nX-Injected: 1",
    b"X-Request-Id: a\x00b",
    b"Origin: http://x\r\tX-Injected: 1",
    b"Host: a\r\nHost: b",
    b"X-Forwarded-For: 1\x0b, 2",
    b"Authorization: Bearer a\r\n b",
    b"X-Breadbox-Admin: yes",
    b"X-Forwarded-Proto: javascript",
]
PATHS = [
    b"/../../etc/passwd",
    b"/%2e%2e/%2e%2e/etc/passwd",
    b"/page/..%2f..%2f..%2fetc%2fpasswd",
    b"/page/../auth.py",
    b"/docs/..%5c..%5cetc",
    b"//etc/passwd",
    b"/.breadbox-progress",
    b"/.breadbox-error",
    b"/page/%00page.css",
    b"/v1/responses/..%2f..%2fsettings.json",
    b"/v1/responses/../../settings.json",
    b"/v1/models/..%2f..%2fx",
    b"file:///etc/passwd",
    b"http://127.0.0.1:1/",
    b"/page/page.css/../../../settings.json",
    b"/%252e%252e/x",
    b"/v1/models?x=%0d%0aX-Injected:%201",
    b"/v1/models/%0d%0aX-Injected:%201",
]


@dataclass(frozen=True)
class Attack:
    """Bytes in the pieces in which they are sent, with pauses between; `max_answers` is what a connection may get."""

    parts: list[bytes]
    max_answers: int = 1


def make_attack(rng: random.Random, key: str) -> Attack:
    """One of all kinds."""
    return rng.choice([_smuggle, _smuggle, _inject, _wander, _swell, _linger, _pipeline])(rng, key.encode())


def _smuggle(rng: random.Random, key: bytes) -> Attack:
    """Behind the body waits the beginning of another request, for whoever thinks that the first one is over."""
    head = [b"POST /v1/chat/completions HTTP/1.1", b"Host: box", b"Authorization: Bearer " + key]
    lines = [*head, b"Content-Type: application/json", *rng.choice(FRAMINGS)]
    hidden = b"GET /" + MARK + b" HTTP/1.1\r\nHost: box\r\nX: "
    return Attack([b"\r\n".join(lines) + b"\r\n\r\n" + rng.choice(BODIES) + hidden], max_answers=2)


def _inject(rng: random.Random, key: bytes) -> Attack:
    lines = [
        b"GET /v1/models HTTP/1.1",
        b"Host: box",
        b"Connection: close",
        *rng.sample(INJECTIONS, rng.randrange(1, 3)),
    ]
    return Attack([b"\r\n".join(lines) + b"\r\n\r\n"])


def _wander(rng: random.Random, key: bytes) -> Attack:
    lines = [rng.choice((b"GET ", b"DELETE ", b"POST ")) + rng.choice(PATHS) + b" HTTP/1.1", b"Host: box"]
    return Attack([b"\r\n".join([*lines, b"Authorization: Bearer " + key, b"Connection: close"]) + b"\r\n\r\n"])


def _swell(rng: random.Random, key: bytes) -> Attack:
    """A head that is long in one of several ways."""
    count, size = rng.choice(((1, 70_000), (100, 1_000), (1000, 20), (20_000, 1), (3, 15_000)))
    lines = [b"X-%d: %b" % (number, b"a" * size) for number in range(count)]
    return Attack([b"\r\n".join([b"GET /version HTTP/1.1", b"Host: box", b"Connection: close", *lines]) + b"\r\n\r\n"])


def _linger(rng: random.Random, key: bytes) -> Attack:
    """A few bytes at a time, and gone in the middle."""
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: box\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    )
    end = rng.randrange(5, len(head))
    return Attack([head[start : start + 9] for start in range(0, end, 9)], max_answers=0)


def _pipeline(rng: random.Random, key: bytes) -> Attack:
    count = rng.randrange(2, 9)
    return Attack([b"GET /version HTTP/1.1\r\nHost: box\r\n\r\n" * count], max_answers=count)


async def perform(host: str, port: int, attack: Attack, within_s: float) -> bytes:
    """Everything that comes back; an attack that expects nothing goes away when it has sent its parts."""
    pause_s = _PAUSE_S if len(attack.parts) > 1 else 0.0
    waits = bool(attack.max_answers)
    return await send(host, port, attack.parts, within_s, pause_s=pause_s, waits=waits)
