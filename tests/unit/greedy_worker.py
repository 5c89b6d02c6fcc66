"""A worker process that asks for ten endless answers: ``python -m tests.unit.greedy_worker SOCKET``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.unit.running_engine import FOREVER, collect, connected_client, make_request


async def _ask(path: Path) -> None:
    async with connected_client(path) as client:
        await asyncio.gather(*(collect(client, make_request(f"r{i}", max_tokens=FOREVER)) for i in range(10)))


if __name__ == "__main__":
    asyncio.run(_ask(Path(sys.argv[1])))
