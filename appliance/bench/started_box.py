"""One box that is started, timed to its first token, looked at, and stopped again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from appliance.bench.comparison.machine import tree_memory_bytes
from appliance.bench.event_loop import run_event_loop
from appliance.bench.http_client import HttpServer
from appliance.bench.http_response import HttpError
from appliance.bench.request_body import BACKENDS, BodyOptions, make_body
from appliance.bench.result import digest
from appliance.errors import ApplianceError

# Often enough for the figure, seldom enough not to disturb the start.
_LOOK_S = 0.04
_STOP_TIMEOUT_S = 60.0
_SHOWN_LOG_LINES = 5


@dataclass(frozen=True)
class StartPlan:
    """The command, and where the box will answer."""

    command: Sequence[str]
    server: HttpServer
    model: str
    timeout_s: float


@dataclass(frozen=True)
class Start:
    """Seconds from when the process was started; ``phases`` are the first model's, as /startupz reports them."""

    ready_s: float
    first_token_s: float
    phases: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None


def start_and_stop(plan: StartPlan) -> Start:
    """Run the command until its box has given a token. Raises ApplianceError with the end of its log."""
    with tempfile.TemporaryFile() as log:
        started_s = time.perf_counter()
        process = subprocess.Popen(plan.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            return run_event_loop(_look_after(plan, process, started_s, log))
        finally:
            _stop(process)


async def _look_after(plan: StartPlan, process: subprocess.Popen[bytes], started_s: float, log: IO[bytes]) -> Start:
    await _wait_until_ready(plan, process, started_s, log)
    ready_s = time.perf_counter() - started_s
    first_token_s = await _first_token(plan) - started_s
    return Start(ready_s, first_token_s, await _phases(plan.server), tree_memory_bytes(process.pid))


async def _wait_until_ready(
    plan: StartPlan, process: subprocess.Popen[bytes], started_s: float, log: IO[bytes]
) -> None:
    while True:
        if process.poll() is not None:
            raise ApplianceError(f"the box ended with exit status {process.returncode}: {_tail(log)}")
        if time.perf_counter() - started_s > plan.timeout_s:
            raise ApplianceError(f"the box was not ready within {plan.timeout_s:g} s: {_tail(log)}")
        try:
            if (await plan.server.get("/health", timeout_s=2.0))[0] == 200:
                return
        except HttpError:
            pass
        await asyncio.sleep(_LOOK_S)


async def _first_token(plan: StartPlan) -> float:
    body = make_body(BodyOptions(plan.model, is_chat=False), "Hello", 1)
    stream = await plan.server.post_stream(BACKENDS["openai"].path, body, plan.timeout_s)
    result = digest(stream, stream.started_s, 1)
    if result.error is not None:
        raise ApplianceError(f"the box is ready, but its first request failed: {result.error}")
    return result.started_s + result.ttft_s


async def _phases(server: HttpServer) -> dict[str, float]:
    """Empty where the server does not tell."""
    try:
        _, body = await server.get("/startupz")
        seconds = json.loads(body)["models"][0]["seconds"]
        return {str(phase): float(value) for phase, value in seconds.items()}
    except (HttpError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-_SHOWN_LOG_LINES:]) or "it printed nothing"
