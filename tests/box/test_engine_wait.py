"""An engine that dies in the very moment in which it became ready: requests wait for the next one, in every worker."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

import httpx
import psutil

from engine.client import EngineClient
from engine.errors import EngineUnavailableError
from tests.box.running_box import READY_WITHIN_S, RunningBox, running_box

FLAGS = ["--kv-cache-memory", "4MiB", "--max-num-seqs", "8", "--api-workers", "2"]
NUM_REQUESTS = 8  # so that both workers get some


def catch_engine(box: RunningBox) -> psutil.Process:
    """Stopped while it loads: its socket is there before anything slow begins."""
    box.wait_until(lambda: any((box.folder / "run").glob("*/engine-0.sock")), READY_WITHIN_S)
    (engine,) = box.find("appliance", "engine", "--index")
    engine.send_signal(signal.SIGSTOP)
    return engine


async def kill_when_ready(box: RunningBox, engine: psutil.Process) -> None:
    """In the moment in which it tells so."""
    client = EngineClient(box.run_dir / "engine-0.sock", connect_timeout_s=READY_WITHIN_S)
    await client.start()
    try:
        engine.send_signal(signal.SIGCONT)
        async with asyncio.timeout(READY_WITHIN_S):
            while not client.was_ready:
                with contextlib.suppress(EngineUnavailableError):
                    await client.info()
        engine.kill()
    finally:
        await client.close()


async def ask(client: httpx.AsyncClient) -> httpx.Response:
    return await client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2})


async def test_a_request_waits_for_an_engine_that_was_ready_for_a_moment(tiny: Path) -> None:
    with running_box(tiny, flags=FLAGS) as box:
        engine = catch_engine(box)
        async with httpx.AsyncClient(base_url=box.url, timeout=2 * READY_WITHIN_S) as client:

            def is_served() -> bool:
                with contextlib.suppress(httpx.HTTPError):
                    return httpx.get(f"{box.url}/v1/models", timeout=10).status_code == 200
                return False

            box.wait_until(is_served, READY_WITHIN_S)
            assert (await ask(client)).status_code == 503, "at the box's first start nobody waits"
            await kill_when_ready(box, engine)
            answers = await asyncio.gather(*(ask(client) for _ in range(NUM_REQUESTS)))
        assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
        assert engine not in box.find("appliance", "engine", "--index")
