"""What is done to a box: one table. A fault that takes connections excuses clients whose connection ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.chaos.target import Target

_HOUR_S = 3600.0
_SPARE_FDS = 2
_PROXY_LINGERS_S = 8.0  # worker_shutdown_timeout: a killed master's workers are asked to end
_API_LINGERS_S = 15.0  # --shutdown-timeout of the campaign, and what gunicorn adds


class NotHereError(Exception):
    """This machine, or this box, does not let itself be broken that way."""


Strike = Callable[[Target, random.Random], Awaitable[None]]
Find = Callable[[Target, random.Random], psutil.Process]


@dataclass(frozen=True)
class Fault:
    """`strike` breaks something and returns when it does so no more; the box has then to become whole by itself.

    A program that was asked to end finishes what it has begun for at most `lingers_s`, beside the one that replaces it,
    and then closes connections that its clients may just be using again.
    """

    name: str
    takes_connections: bool
    strike: Strike
    lingers_s: float = 0.0


def _engine(target: Target, rng: random.Random) -> psutil.Process:
    return _there(target.find_engine())


def _api_master(target: Target, rng: random.Random) -> psutil.Process:
    return _there(target.find_api_master())


def _api_worker(target: Target, rng: random.Random) -> psutil.Process:
    return _there(_any_of(target.find_api_workers(), rng))


def _proxy_master(target: Target, rng: random.Random) -> psutil.Process:
    return _there(target.find_proxy_master())


def _proxy_worker(target: Target, rng: random.Random) -> psutil.Process:
    return _there(_any_of(target.find_proxy_workers(), rng))


def _any_of(found: list[psutil.Process], rng: random.Random) -> psutil.Process | None:
    return rng.choice(found) if found else None


def _there(process: psutil.Process | None) -> psutil.Process:
    if process is None:
        raise NotHereError("it is not running")
    return process


def _signalled(find: Find, number: signal.Signals) -> Strike:
    async def strike(target: Target, rng: random.Random) -> None:
        find(target, rng).send_signal(number)

    return strike


def _stopped(find: Find, longest_s: float) -> Strike:
    """Stopped for a while; somebody may find it dead before it goes on."""

    async def strike(target: Target, rng: random.Random) -> None:
        process = find(target, rng)
        process.suspend()
        try:
            await asyncio.sleep(rng.uniform(0.2, longest_s))
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    return strike


def _starved_of_files(find: Find) -> Strike:
    """It may open hardly any more files or sockets for a while."""

    async def strike(target: Target, rng: random.Random) -> None:
        process = find(target, rng)
        soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
        process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds() + _SPARE_FDS, hard))
        try:
            await asyncio.sleep(rng.uniform(1, 4))
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))

    return strike


def _on_a_full_disk(strike: Strike | None = None) -> Strike:
    """There is no room in the run directory for a while; `strike` is what happens meanwhile."""

    async def strike_when_full(target: Target, rng: random.Random) -> None:
        if target.disk is None:
            raise NotHereError("a small disk needs root to be mounted")
        file = target.disk / "full"
        try:
            await asyncio.to_thread(write_until_full, file)
            if strike is not None:
                await strike(target, rng)
            await asyncio.sleep(rng.uniform(2, 6))
        finally:
            file.unlink(missing_ok=True)

    return strike_when_full


def write_until_full(file: Path) -> None:
    """Take every byte that the file's disk has left."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as full:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while full.write(b"\0" * size):
                    pass


async def _jump_clock(target: Target, rng: random.Random) -> None:
    if target.clock is None:
        raise NotHereError("a clock of its own needs a C compiler")
    target.set_clock(rng.choice([-1, 1]) * rng.uniform(1, 48) * _HOUR_S)
    await asyncio.sleep(1)


FAULTS: tuple[Fault, ...] = (
    Fault("engine killed", False, _signalled(_engine, signal.SIGKILL)),
    Fault("engine terminated", False, _signalled(_engine, signal.SIGTERM)),
    Fault("engine stopped", False, _stopped(_engine, 12)),
    Fault("API worker killed", True, _signalled(_api_worker, signal.SIGKILL)),
    Fault("API worker terminated", True, _signalled(_api_worker, signal.SIGTERM), _API_LINGERS_S),
    Fault("API worker stopped", False, _stopped(_api_worker, 8)),
    Fault("API master killed", True, _signalled(_api_master, signal.SIGKILL), _API_LINGERS_S),
    Fault("API master terminated", True, _signalled(_api_master, signal.SIGTERM), _API_LINGERS_S),
    Fault("API master stopped", False, _stopped(_api_master, 8)),
    Fault("proxy master killed", True, _signalled(_proxy_master, signal.SIGKILL), _PROXY_LINGERS_S),
    Fault("proxy master terminated", True, _signalled(_proxy_master, signal.SIGTERM)),
    Fault("proxy worker killed", True, _signalled(_proxy_worker, signal.SIGKILL)),
    Fault("proxy worker terminated", True, _signalled(_proxy_worker, signal.SIGTERM)),
    Fault("proxy worker stopped", False, _stopped(_proxy_worker, 6)),
    Fault("API worker without files", True, _starved_of_files(_api_worker)),
    Fault("engine without files", False, _starved_of_files(_engine)),
    Fault("proxy without files", True, _starved_of_files(_proxy_worker)),
    Fault("disk full", False, _on_a_full_disk()),
    Fault("disk full, API worker killed", True, _on_a_full_disk(_signalled(_api_worker, signal.SIGKILL))),
    Fault("disk full, engine killed", False, _on_a_full_disk(_signalled(_engine, signal.SIGKILL))),
    Fault("clock jumped", False, _jump_clock),
)
