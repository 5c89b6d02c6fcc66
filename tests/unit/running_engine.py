"""Engines and clients for the tests of the socket: in this process, or in one of their own that can be killed."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from engine.client import EngineClient
from engine.errors import EngineUnavailableError
from engine.messages import EngineInfo, GenerateRequest, RequestOutput, SamplingParams
from engine.server import EngineServer
from tests.fakes import FakeEngine
from tests.unit.engine_process import VOCAB_SIZE, CountingRunner, make_config

PATIENCE_S = 30.0
FOREVER = 30_000  # tokens


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A folder with a short name: unix socket paths have little room."""
    with tempfile.TemporaryDirectory(prefix="bb-") as folder:
        yield Path(folder)


@contextmanager
def running_engine(path: Path, runner: CountingRunner, **knobs: Any) -> Iterator[EngineServer]:
    """An engine in a thread of this process."""
    server = EngineServer(make_config(path, **knobs), lambda config, progress: runner)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        gc.unfreeze()
        assert not thread.is_alive()


@contextmanager
def spawned(*argv: str, module: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process, dead at the end whatever happens."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def spawned_engine(path: Path, *options: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """An engine process."""
    return spawned(str(path), *options, module="tests.unit.engine_process")


@asynccontextmanager
async def connected_client(path: Path, **options: float) -> AsyncIterator[EngineClient]:
    """A started client, closed at the end."""
    client = EngineClient(path, **options)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def make_request(
    request_id: str = "r", *, prompt: list[int] | None = None, max_tokens: int = 5, **fields: Any
) -> GenerateRequest:
    """Counts on from the prompt's last token."""
    sampling = SamplingParams(max_tokens=max_tokens, seed=1)
    return GenerateRequest(request_id=request_id, prompt_token_ids=prompt or [1, 2, 3], sampling=sampling, **fields)


def counted(after: int, num_tokens: int) -> list[int]:
    """What the engine answers to a prompt that ends in `after`."""
    return [(after + i) % VOCAB_SIZE for i in range(1, num_tokens + 1)]


async def collect(client: EngineClient | FakeEngine, request: GenerateRequest) -> list[RequestOutput]:
    """All outputs."""
    return [output async for output in client.submit(request)]


def tokens_of(outputs: list[RequestOutput]) -> list[int]:
    """Their token ids in one list."""
    return [token for output in outputs for token in output.token_ids]


async def wait_for_info(client: EngineClient, is_right: Callable[[EngineInfo], bool]) -> EngineInfo:
    """Ask until the engine is in the wanted state."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            info = await client.info()
            if is_right(info):
                return info
        except EngineUnavailableError:
            pass
        await asyncio.sleep(0.02)
    raise AssertionError("the engine did not get there")


async def wait_ready(client: EngineClient) -> EngineInfo:
    """Ask until requests are taken."""
    return await wait_for_info(client, lambda info: info.is_ready)


async def wait_idle(client: EngineClient) -> EngineInfo:
    """Ask until nothing runs."""
    return await wait_for_info(client, lambda info: info.num_running + info.num_waiting == 0)
