"""`breadbox drain`: takes the box that runs here out of rotation and waits until it has nothing to do.

Nothing is refused: load balancers need a moment until they notice. Stopping the box is another matter (SIGTERM).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from appliance.box_facts import NOT_READY_FILE
from appliance.supervisor.running import find_running
from engine.client import EngineClient
from engine.errors import EngineError

IDLE_WITHIN_S = 3600.0
_LOOK_S = 0.5
_IDLE_LOOKS = 3  # one after another, as a request is in the API before it is in the engine


def drain(run_dir: Path | None, *, settle_s: float, timeout_s: float) -> int:
    """Returns 0 when nothing runs any more (but not before `settle_s`), 1 at the timeout. Raises NoBoxError."""
    settings = find_running(run_dir)
    assert settings.run_dir is not None
    (settings.run_dir / NOT_READY_FILE).touch(mode=0o600)
    started_s = time.monotonic()
    sockets = [settings.run_dir / f"engine-{index}.sock" for index in range(len(settings.model))]
    left = asyncio.run(_wait_until_idle(sockets, started_s + settle_s, started_s + timeout_s))
    if left:
        print(f"out of rotation, but {left} requests still run after {timeout_s:g} s")
        return 1
    print(f"out of rotation, and nothing runs after {time.monotonic() - started_s:.1f} s")
    return 0


def undo_drain(run_dir: Path | None) -> int:
    """Let /readyz tell the truth again. Raises NoBoxError."""
    settings = find_running(run_dir)
    assert settings.run_dir is not None
    (settings.run_dir / NOT_READY_FILE).unlink(missing_ok=True)
    print("in rotation again")
    return 0


async def _wait_until_idle(sockets: list[Path], not_before_s: float, deadline_s: float) -> int:
    clients = [EngineClient(path) for path in sockets]
    for client in clients:
        await client.start()
    try:
        idle_looks, left = 0, 0
        while time.monotonic() < deadline_s:
            left = sum(await asyncio.gather(*map(_count_requests, clients)))
            idle_looks = 0 if left else idle_looks + 1
            if idle_looks >= _IDLE_LOOKS and time.monotonic() >= not_before_s:
                return 0
            await asyncio.sleep(_LOOK_S)
        return left
    finally:
        for client in clients:
            await client.close()


async def _count_requests(client: EngineClient) -> int:
    try:
        info = await client.info(timeout_s=2.0)
    except EngineError:
        return 0  # an engine that is away runs nothing
    return info.num_running + info.num_waiting
