"""What one key has used, shared by all API workers: a small file in the run directory, changed under a lock.

Requests and tokens are leaky buckets: what was spent leaks away at the limit's rate, so a bucket that is full has room
again bit by bit. Requests in flight are counted by worker; those of a worker that died are not counted any more.
Clocks that are set do not matter: the time is the machine's monotonic one, which all processes share.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from appliance.process_stat import read_stat

logger = logging.getLogger(__name__)

_RECORD_BYTES = 4096  # written as a whole, so that no rest of an older record stays behind
_RETRY_S = 0.002
_RETRY_AFTER_FAULT_S = 1.0
LOCK_PATIENCE_S = 2.0
_MINUTE_S = 60.0
_START_TIME = 19  # place among the fields that `read_stat` gives
_instances = itertools.count()
T = TypeVar("T")


class Bucket(msgspec.Struct):
    """``spent`` of a limit as of ``at_s``."""

    spent: float = 0.0
    at_s: float = 0.0

    def leak(self, per_minute: int | None, now_s: float) -> None:
        """Bring it up to date; without a limit nothing is spent."""
        leaked = math.inf if per_minute is None else (now_s - self.at_s) * per_minute / _MINUTE_S
        self.spent = max(0.0, self.spent - leaked)
        self.at_s = now_s

    def give_back(self, amount: float) -> None:
        """What was charged and not had."""
        self.spent = max(0.0, self.spent - amount)

    def wait_s(self, amount: float, per_minute: int) -> float:
        """Seconds until there is room for `amount`, or for the whole limit if that is less; 0 where there is."""
        return max(0.0, self.spent + min(amount, per_minute) - per_minute) * _MINUTE_S / per_minute


class Usage(msgspec.Struct):
    """One key's record."""

    requests: Bucket = msgspec.field(default_factory=Bucket)
    tokens: Bucket = msgspec.field(default_factory=Bucket)
    in_flight: dict[str, int] = {}  # by worker


class UsageFile:
    """One key's record in `folder`; without a folder it is this process's own."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self._path = None if folder is None else folder / (hashlib.sha256(name.encode()).hexdigest()[:32] + ".json")
        self._own = Usage()
        self._worker = f"{_describe_process(str(os.getpid()))}.{next(_instances)}"
        self._num_in_flight = 0

    async def update(self, change: Callable[[Usage], T]) -> T:
        """Apply `change` to the record and write it; where `change` raises, nothing is written.

        Raises TimeoutError where another process keeps the lock, OSError where there is no room for a record.
        """
        give_up_s = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                with self._open() as usage:
                    return change(usage)
            except BlockingIOError:
                if time.monotonic() >= give_up_s:
                    raise TimeoutError(f"{self._path} is locked by another process") from None
            await asyncio.sleep(_RETRY_S)

    def update_soon(self, change: Callable[[Usage], None]) -> None:
        """The same without waiting, for the end of a request: now or, where that cannot be, as soon as it can."""
        try:
            with self._open() as usage:
                change(usage)
        except BlockingIOError:
            asyncio.get_running_loop().call_later(_RETRY_S, self.update_soon, change)
        except OSError as error:
            logger.warning("usage of an api key could not be written, trying again error=%s", error.strerror)
            asyncio.get_running_loop().call_later(_RETRY_AFTER_FAULT_S, self.update_soon, change)

    def begin(self, usage: Usage) -> None:
        """One more request of this worker is in flight; within `update`."""
        usage.in_flight[self._worker] = self._num_in_flight + 1

    def end(self, usage: Usage) -> None:
        """One less."""
        usage.in_flight[self._worker] = self._num_in_flight - 1

    @contextmanager
    def _open(self) -> Iterator[Usage]:
        """The record under its lock, written back at the end. Raises BlockingIOError, OSError."""
        if self._path is None:
            yield self._own
            self._keep_count(self._own)
            return
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            usage = _read(file, self._path)
            usage.in_flight = {worker: num for worker, num in usage.in_flight.items() if num and self._lives(worker)}
            yield usage
            os.pwrite(file, msgspec.json.encode(usage).ljust(_RECORD_BYTES), 0)
            self._keep_count(usage)
        finally:
            os.close(file)

    def _keep_count(self, usage: Usage) -> None:
        # Only now: what could not be written did not happen, and may be tried again.
        self._num_in_flight = usage.in_flight.get(self._worker, self._num_in_flight)

    def _lives(self, worker: str) -> bool:
        process = worker.rpartition(".")[0]
        return worker == self._worker or _describe_process(process.partition(".")[0]) == process


def _read(file: int, path: Path) -> Usage:
    if os.fstat(file).st_size == 0:
        os.posix_fallocate(file, 0, _RECORD_BYTES)  # now or never: a full disk must not fail later, halfway
    data = os.pread(file, 16 * _RECORD_BYTES, 0).strip(b"\0 ")
    try:
        return msgspec.json.decode(data, type=Usage) if data else Usage()
    except msgspec.MsgspecError as error:
        logger.warning("usage of an api key is damaged and begins anew file=%s error=%s", path.name, error)
        return Usage()


def _describe_process(pid: str) -> str:
    """``pid.start time``, which no other process ever has; empty for one that is dead."""
    fields = read_stat(pid)
    return "" if not fields or fields[0] in "ZX" else f"{pid}.{fields[_START_TIME]}"
