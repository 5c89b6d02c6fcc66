"""One client that asks one case, at its own pace: in a hurry, slowly, or gone before the end."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from tests.chaos.answers import BrokenAnswerError, read_collected, read_stream
from tests.chaos.cases import Case

ANSWER_WITHIN_S = 600.0
_SLOW_PAUSE_S = 0.1
_LOST = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError, aiohttp.http.HttpProcessingError)


class LostError(Exception):
    """The connection ended before the answer did."""


class RefusedError(Exception):
    """The box said that it is too busy or away: come again."""

    def __init__(self, status: int, retry_after_s: float) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.retry_after_s = retry_after_s


class WrongError(Exception):
    """What must never come."""


def make_session(
    url: str, key: str | None, max_connections: int = 0, answer_within_s: float = ANSWER_WITHIN_S
) -> aiohttp.ClientSession:
    """For any number of connections, unless there is a limit."""
    return aiohttp.ClientSession(
        url,
        headers={"authorization": f"Bearer {key}"} if key else {},
        connector=aiohttp.TCPConnector(limit=max_connections),
        timeout=aiohttp.ClientTimeout(total=answer_within_s),
        read_bufsize=2048,
    )


async def ask(session: aiohttp.ClientSession, case: Case, *, is_slow: bool = False) -> Any:
    """The lasting part of the answer. Raises LostError, RefusedError, WrongError."""
    try:
        async with session.post(case.path, json=case.body) as response:
            if response.status != 200:
                raise await _refusal(response)
            text = await _read(response, is_slow)
    except TimeoutError:
        raise WrongError(f"no answer within {session.timeout.total:g} s") from None
    except _LOST as error:
        raise LostError(f"{type(error).__name__}: {error}") from None
    return _understand(case, text)


async def ask_and_leave(session: aiohttp.ClientSession, case: Case, after_s: float) -> None:
    """Go away while the answer is being made; whatever comes until then is not looked at."""
    try:
        async with asyncio.timeout(after_s), session.post(case.path, json=case.body) as response:
            await response.read()
    except (TimeoutError, *_LOST):
        pass


async def hold_half_open(host: str, port: int, sent: bytes, for_s: float) -> None:
    """Send the beginning of a request, say nothing more for a while, and be gone without a word."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return
    try:
        writer.write(sent)
        await asyncio.sleep(for_s)
    finally:
        writer.transport.abort()


async def _read(response: aiohttp.ClientResponse, is_slow: bool) -> str:
    parts = []
    async for part in response.content.iter_any():
        parts.append(part)
        if is_slow:
            await asyncio.sleep(_SLOW_PAUSE_S)
    return b"".join(parts).decode()


async def _refusal(response: aiohttp.ClientResponse) -> Exception:
    text = await response.text()
    if response.status in (429, 503) and "retry-after" in response.headers:
        return RefusedError(response.status, float(response.headers["retry-after"]))
    return WrongError(f"status {response.status}: {text[:300]}")


def _understand(case: Case, text: str) -> Any:
    try:
        return read_stream(text) if case.is_stream else read_collected(text)
    except BrokenAnswerError as error:
        if error.error.get("type") in ("service_unavailable", "overloaded_error"):
            raise RefusedError(503, 1) from None
        if "no end" in str(error):
            raise LostError(str(error)) from None
        raise WrongError(str(error)) from None
