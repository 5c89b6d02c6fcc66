"""The API worker's class: uvicorn under gunicorn, with the loop and the parser in C."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn_worker import UvicornWorker

from appliance.supervisor.http_protocol import HttpProtocol

_SIGNS_BEFORE_TIMEOUT = 12  # of half of gunicorn's, which is what a worker is told


class Worker(UvicornWorker):  # type: ignore[misc]  # it has no types
    """Fails to start when the app's lifespan does, and never lets a client wait for a websocket upgrade.

    Its signs of life are its own: uvicorn's come by the wall clock, so where that is set back they stop, and gunicorn
    kills a healthy worker.
    """

    CONFIG_KWARGS: ClassVar[dict[str, Any]] = {
        "loop": "uvloop",
        "http": HttpProtocol,
        "ws": "none",
        "lifespan": "on",
        "server_header": False,
        "access_log": False,
        "callback_notify": None,
    }

    async def _serve(self) -> None:
        signs = asyncio.create_task(self._show_life())
        try:
            await super()._serve()
        finally:
            signs.cancel()

    async def _show_life(self) -> None:
        while True:
            self.notify()
            await asyncio.sleep(self.timeout / _SIGNS_BEFORE_TIMEOUT)
