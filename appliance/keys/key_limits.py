"""A key's limits: whether a request may begin, what it costs, and what is left afterwards.

A request is charged when it begins, its prompt's tokens when they are known, its output's when it ends. So a key may
go over its token limit once, by what is being generated, and then waits it off. What the box does not serve, as it is
over a limit or full or broken, costs nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from appliance.errors import RateLimitError, UnavailableError
from appliance.keys.api_key import ApiKey, KeyLimits
from appliance.keys.usage_file import Bucket, Usage, UsageFile

logger = logging.getLogger(__name__)

_CONCURRENCY_RETRY_S = 1.0
_MINUTE_S = 60.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of one limit."""

    limit: int
    remaining: int
    reset_s: float  # until all of it is there again

    @classmethod
    def of(cls, bucket: Bucket, limit: int) -> Allowance:
        """As the bucket stands."""
        return cls(limit, max(0, math.floor(limit - bucket.spent)), bucket.spent * _MINUTE_S / limit)


class Lease:
    """One request under its key's limits: `begin`, `charge_prompt`, `end`."""

    def __init__(self, key: ApiKey, file: UsageFile) -> None:
        self._limits = key.limits
        self._file = file
        self._is_running = False
        self._num_prompt_tokens = 0  # charged so far
        self.requests: Allowance | None = None
        self.tokens: Allowance | None = None

    async def begin(self) -> None:
        """Raises RateLimitError."""
        await self._update(self._begin)
        self._is_running = True

    async def charge_prompt(self, num_tokens: int) -> None:
        """Raises RateLimitError where the prompt has to wait; then the request does not count."""
        limit = self._limits.tokens_per_minute
        if limit is None:
            return
        wait_s = await self._update(lambda usage: self._charge_prompt(usage, num_tokens, limit))
        if wait_s == 0:
            self._num_prompt_tokens += num_tokens
        else:
            raise _refuse("tokens_per_minute", limit, f"the prompt has {num_tokens} tokens", wait_s)

    def end(self, num_output_tokens: int, *, is_free: bool = False) -> None:
        """However it ended; `is_free` where the box is to blame that there was no answer."""
        if self._is_running:
            self._is_running = False
            self._file.update_soon(lambda usage: self._end(usage, num_output_tokens, is_free))

    async def _update(self, change: Callable[[Usage], T]) -> T:
        try:
            return await self._file.update(change)
        except OSError as error:  # a timeout is one, too
            logger.warning("usage of an api key could not be updated error=%s", error)
            raise UnavailableError("this key's limits cannot be checked now", retry_after_s=1.0) from None

    def _begin(self, usage: Usage) -> None:
        self._leak(usage)
        try:
            _check(usage, self._limits)
            if self._limits.requests_per_minute is not None:
                usage.requests.spent += 1
            self._file.begin(usage)
        finally:
            self._look_at(usage)

    def _charge_prompt(self, usage: Usage, num_tokens: int, limit: int) -> float:
        """Seconds to wait; 0 where it was charged."""
        self._leak(usage)
        wait_s = usage.tokens.wait_s(num_tokens, limit)
        if wait_s > 0:
            usage.requests.give_back(1)
        else:
            usage.tokens.spent += num_tokens
        self._look_at(usage)
        return wait_s

    def _end(self, usage: Usage, num_output_tokens: int, is_free: bool) -> None:
        self._leak(usage)
        if is_free:
            usage.requests.give_back(1)
            usage.tokens.give_back(self._num_prompt_tokens)
        elif self._limits.tokens_per_minute is not None:
            usage.tokens.spent += num_output_tokens
        self._file.end(usage)

    def _leak(self, usage: Usage) -> None:
        now_s = time.monotonic()
        usage.requests.leak(self._limits.requests_per_minute, now_s)
        usage.tokens.leak(self._limits.tokens_per_minute, now_s)

    def _look_at(self, usage: Usage) -> None:
        limits = self._limits
        if limits.requests_per_minute is not None:
            self.requests = Allowance.of(usage.requests, limits.requests_per_minute)
        if limits.tokens_per_minute is not None:
            self.tokens = Allowance.of(usage.tokens, limits.tokens_per_minute)


def _check(usage: Usage, limits: KeyLimits) -> None:
    running = sum(usage.in_flight.values())
    if limits.max_concurrent is not None and running >= limits.max_concurrent:
        raise _refuse("max_concurrent", limits.max_concurrent, f"{running} are running", _CONCURRENCY_RETRY_S)
    for field, bucket, limit in (
        ("requests_per_minute", usage.requests, limits.requests_per_minute),
        ("tokens_per_minute", usage.tokens, limits.tokens_per_minute),
    ):
        if limit is not None and (wait_s := bucket.wait_s(1, limit)) > 0:
            raise _refuse(field, limit, "it is used up", wait_s)


def _refuse(field: str, limit: int, why: str, wait_s: float) -> RateLimitError:
    return RateLimitError(
        f"this key's limit of {limit} ({field}) is reached: {why}; try again in {math.ceil(wait_s)} s",
        retry_after_s=wait_s,
    )


class KeyLimiter:
    """Hands out leases. `folder` is the run directory's, which all API workers share."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files: dict[str, UsageFile] = {}
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def make_lease(self, key: ApiKey) -> Lease:
        """For one request."""
        if key.name not in self._files:
            self._files[key.name] = UsageFile(key.name, self._folder)
        return Lease(key, self._files[key.name])
