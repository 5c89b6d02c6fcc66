"""Sends a load: each request at its time, no more than so many at once, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from appliance.bench.http_client import HttpServer
from appliance.bench.result import RequestResult, digest


@dataclass(frozen=True)
class PreparedRequest:
    """A request that is ready to be sent; ``arrival_s`` counts from the start of the load."""

    path: str
    body: bytes
    num_prompt_tokens: int = 0
    arrival_s: float = 0.0


@dataclass(frozen=True)
class LoadResult:
    """Results in the order of the requests; ``started_s`` is `time.perf_counter`'s."""

    started_s: float
    duration_s: float
    results: list[RequestResult]


async def run_load(
    server: HttpServer,
    requests: Sequence[PreparedRequest],
    max_concurrency: int | None = None,
    timeout_s: float = 6 * 3600.0,
    on_done: Callable[[RequestResult], None] | None = None,
) -> LoadResult:
    """Send `requests` (in order of arrival) and wait for all answers."""
    places = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
    started_s = time.perf_counter()

    async def send(request: PreparedRequest) -> RequestResult:
        arrived_s = time.perf_counter()
        async with places:
            stream = await server.post_stream(request.path, request.body, timeout_s)
        result = digest(stream, arrived_s, request.num_prompt_tokens)
        if on_done is not None:
            on_done(result)
        return result

    with _quiet_collector():
        async with asyncio.TaskGroup() as group:
            tasks = []
            for request in requests:
                await _sleep_until(started_s + request.arrival_s)
                tasks.append(group.create_task(send(request)))
        duration_s = time.perf_counter() - started_s
    return LoadResult(started_s, duration_s, [task.result() for task in tasks])


async def _sleep_until(moment_s: float) -> None:
    left_s = moment_s - time.perf_counter()
    if left_s > 0:
        await asyncio.sleep(left_s)


@contextlib.contextmanager
def _quiet_collector() -> Iterator[None]:
    """The collector's pauses would show up as latencies of the server."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
