"""Bytes that were JSON once, and the headers around them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from tests.e2e.fuzz.limits import limit

SNIPPETS = [b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\x97", b"\xc0\x80", b"\xed\xa0\x80", b"[" * 300, b"{" * 300, b'"',
            b"\\", b"\\u0000", b"\\ud800", b"NaN", b"-Infinity", b"1e9999", b"9" * 400, b",", b":", b"}", b"]",
            b"null", b"/*", b"'"]  # fmt: skip
CONTENT_TYPES = ["application/json", "application/json", "application/json; charset=utf-16", "APPLICATION/JSON", "",
                 "text/plain", "multipart/form-data", "application/x-www-form-urlencoded", "application/x"]  # fmt: skip


def damage(rng: random.Random, body: bytes) -> bytes:
    """A few bytes of it changed, lost, doubled or put in; still short of what would take long to answer."""
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        body = rng.choice(_DAMAGES)(rng, body)
    return _limited(body)


def _limited(body: bytes) -> bytes:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body
    return json.dumps(limit(value)).encode() if isinstance(value, dict) else body


def _flip(rng: random.Random, body: bytes) -> bytes:
    if not body:
        return body
    at = rng.randrange(len(body))
    return body[:at] + bytes([body[at] ^ (1 << rng.randrange(8))]) + body[at + 1 :]


def _cut(rng: random.Random, body: bytes) -> bytes:
    start, end = sorted((rng.randrange(len(body) + 1), rng.randrange(len(body) + 1)))
    return body[:start] + body[end:]


def _double(rng: random.Random, body: bytes) -> bytes:
    start, end = sorted((rng.randrange(len(body) + 1), rng.randrange(len(body) + 1)))
    return body[:end] + body[start:end] + body[end:]


def _insert(rng: random.Random, body: bytes) -> bytes:
    at = rng.randrange(len(body) + 1)
    return body[:at] + rng.choice(SNIPPETS) + body[at:]


def _truncate(rng: random.Random, body: bytes) -> bytes:
    return body[: rng.randrange(len(body) + 1)]


_DAMAGES: list[Callable[[random.Random, bytes], bytes]] = [_flip, _flip, _cut, _double, _insert, _insert, _truncate]
