"""Limits hold over all processes that share a run directory, to the request; what dies gives back what it held."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from appliance.errors import RateLimitError, UnavailableError
from appliance.keys import usage_file
from appliance.keys.api_key import ApiKey, KeyLimits
from appliance.keys.key_limits import KeyLimiter, Lease


def make_key(**limits: int) -> ApiKey:
    return ApiKey("alice", (bytes(32),), limits=KeyLimits(**limits))


async def begin_many(limiter: KeyLimiter, key: ApiKey, count: int) -> list[Lease]:
    """Those that were let in."""
    let_in = []
    for _ in range(count):
        lease = limiter.make_lease(key)
        with contextlib.suppress(RateLimitError):
            await lease.begin()
            let_in.append(lease)
    return let_in


async def wait_for_place(limiter: KeyLimiter, key: ApiKey) -> None:
    deadline_s = time.monotonic() + 30
    while not await begin_many(limiter, key, 1):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still until it is told."""
    now = [1000.0]
    monkeypatch.setattr("appliance.keys.key_limits.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize("shared", [True, False])
async def test_requests_leak_away_at_the_limits_rate(tmp_path: Path, clock: list[float], shared: bool) -> None:
    limiter, key = KeyLimiter(tmp_path if shared else None), make_key(requests_per_minute=6)
    assert len(await begin_many(limiter, key, 9)) == 6
    lease = limiter.make_lease(key)
    with pytest.raises(RateLimitError, match=r"limit of 6 \(requests_per_minute\)") as caught:
        await lease.begin()
    assert caught.value.retry_after_s == pytest.approx(10)
    assert lease.requests is not None
    assert (lease.requests.limit, lease.requests.remaining, lease.requests.reset_s) == (6, 0, pytest.approx(60))
    clock[0] += 20.1
    (lease, _) = await begin_many(limiter, key, 5)
    assert lease.requests is not None
    assert lease.requests.remaining == 1


async def test_tokens_of_prompts_and_outputs_count(tmp_path: Path, clock: list[float]) -> None:
    limiter, key = KeyLimiter(tmp_path), make_key(tokens_per_minute=600, requests_per_minute=100)
    (first,) = await begin_many(limiter, key, 1)
    await first.charge_prompt(400)
    assert first.tokens is not None
    assert first.tokens.remaining == 200
    first.end(150)
    (second,) = await begin_many(limiter, key, 1)
    with pytest.raises(RateLimitError, match="the prompt has 100 tokens") as caught:
        await second.charge_prompt(100)
    assert caught.value.retry_after_s == pytest.approx(5)
    assert second.requests is not None
    assert second.requests.remaining == 99, "what is refused does not count"
    second.end(0)
    clock[0] += 5
    (third,) = await begin_many(limiter, key, 1)
    await third.charge_prompt(100)
    third.end(300)  # over the limit, once
    assert await begin_many(limiter, key, 1) == []
    clock[0] += 31
    assert len(await begin_many(limiter, key, 1)) == 1


async def test_a_prompt_that_is_longer_than_the_limit_waits_for_all_of_it(tmp_path: Path, clock: list[float]) -> None:
    limiter, key = KeyLimiter(tmp_path), make_key(tokens_per_minute=60)
    (lease,) = await begin_many(limiter, key, 1)
    await lease.charge_prompt(120)
    lease.end(0)
    clock[0] += 61
    (lease,) = await begin_many(limiter, key, 1)
    with pytest.raises(RateLimitError):
        await lease.charge_prompt(120)
    clock[0] += 60
    await lease.charge_prompt(120)


async def test_a_limit_that_was_changed_counts_from_what_was_spent(tmp_path: Path, clock: list[float]) -> None:
    limiter = KeyLimiter(tmp_path)
    assert len(await begin_many(limiter, make_key(requests_per_minute=4), 9)) == 4
    assert len(await begin_many(limiter, make_key(requests_per_minute=7), 9)) == 3
    assert len(await begin_many(limiter, make_key(max_concurrent=100), 9)) == 9


async def test_two_workers_share_a_limit(tmp_path: Path, clock: list[float]) -> None:
    one, two = KeyLimiter(tmp_path), KeyLimiter(tmp_path)
    key = make_key(max_concurrent=5, requests_per_minute=8)
    held = await asyncio.gather(*(begin_many(limiter, key, 5) for limiter in (one, two)))
    assert sum(map(len, held)) == 5
    for lease in (*held[0], *held[1]):
        lease.end(0)
        lease.end(0)  # once is enough
    held = await asyncio.gather(*(begin_many(limiter, key, 5) for limiter in (one, two)))
    assert sum(map(len, held)) == 3


_WORKER = """
import asyncio, sys
from pathlib import Path
from tests.unit.keys.test_key_limits import KeyLimiter, begin_many, make_key

async def run():
    print(len(await begin_many(KeyLimiter(Path(sys.argv[1])), make_key(max_concurrent=20), 15)), flush=True)
    sys.stdin.read()

asyncio.run(run())
"""


def start_worker(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WORKER, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_processes_share_it_and_one_that_is_killed_gives_back(tmp_path: Path) -> None:
    workers = [start_worker(tmp_path) for _ in range(2)]
    try:
        let_in = [int(await asyncio.to_thread(worker.stdout.readline)) for worker in workers]
        assert sum(let_in) == 20
        limiter, key = KeyLimiter(tmp_path), make_key(max_concurrent=20)
        assert await begin_many(limiter, key, 5) == []
        workers[0].send_signal(signal.SIGKILL)
        workers[0].wait()
        assert len(await begin_many(limiter, key, 20)) == let_in[0]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def find_record(folder: Path) -> Path:
    (record,) = folder.iterdir()
    return record


async def test_a_lock_that_is_not_given_back_delays_nobody_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_file, "LOCK_PATIENCE_S", 0.1)
    limiter, key = KeyLimiter(tmp_path), make_key(max_concurrent=1)
    (held,) = await begin_many(limiter, key, 1)
    with find_record(tmp_path).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UnavailableError):
            await limiter.make_lease(key).begin()
        held.end(0)
    await wait_for_place(limiter, key)


async def test_an_end_that_cannot_be_written_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_file, "_RETRY_AFTER_FAULT_S", 0.01)
    limiter, key = KeyLimiter(tmp_path), make_key(max_concurrent=1)
    (held,) = await begin_many(limiter, key, 1)
    with monkeypatch.context() as patch:
        patch.setattr(usage_file.os, "open", lambda *args: (_ for _ in ()).throw(OSError(24, "too many files")))
        held.end(0)
    await wait_for_place(limiter, key)


async def test_what_could_not_be_written_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_file, "_RETRY_AFTER_FAULT_S", 0.01)
    limiter, key = KeyLimiter(tmp_path), make_key(max_concurrent=2)
    failures = asyncio.Semaphore(0)

    def fail(*args: object) -> int:
        failures.release()
        raise OSError(errno.EIO, "broken")

    (held,) = await begin_many(limiter, key, 1)
    with monkeypatch.context() as patch:
        patch.setattr(usage_file.os, "pwrite", fail)
        with pytest.raises(UnavailableError):
            await limiter.make_lease(key).begin()
        held.end(0)
        for _ in range(4):  # the end is tried again and again
            await asyncio.wait_for(failures.acquire(), 30)
    deadline_s = time.monotonic() + 30
    while len(let_in := await begin_many(limiter, key, 3)) != 2:
        assert time.monotonic() < deadline_s
        for lease in let_in:
            lease.end(0)
        await asyncio.sleep(0.01)


async def test_a_damaged_record_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limiter, key = KeyLimiter(tmp_path), make_key(requests_per_minute=1)
    assert len(await begin_many(limiter, key, 2)) == 1
    find_record(tmp_path).write_bytes(os.urandom(100))
    assert len(await begin_many(limiter, key, 2)) == 1
    assert "is damaged and begins anew" in caplog.text
