"""A box that is ready soon: ``python -m tests.unit.bench.fake_box PORT [WORD]``; WORD says what goes wrong."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from tests.unit.bench.fake_server import FakeServer, answer, reply_well

PHASES = {"loading weights": 0.25, "warming up": 0.5}


class StartingBox(FakeServer):
    """Answers /health with 503 twice, before it is ready."""

    looks = 0

    def _get(self, path: str) -> bytes:
        if path == "/startupz":
            return answer(200, {"status": "ready", "models": [{"model": "m", "seconds": PHASES}]})
        self.looks += 1
        return answer(200, b"") if self.looks > 2 else answer(503, {"status": "not ready"})


def refuse(server: FakeServer, path: str, body: dict[str, Any]) -> list[bytes]:
    """No token, ever."""
    return [answer(500, {"error": {"message": "out of order"}})]


async def main(port: int, word: str) -> None:
    """Serve until killed."""
    if word == "dies":
        print(json.dumps("starting"))
        sys.exit("no such model")
    box = StartingBox(refuse if word == "refuses" else reply_well)
    server = await asyncio.start_server(box.handle, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""))
