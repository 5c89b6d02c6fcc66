"""The API worker's class: uvicorn under gunicorn, with the loop and the parser in C."""

from __future__ import annotations

from typing import Any, ClassVar

from uvicorn_worker import UvicornWorker

from appliance.supervisor.http_protocol import HttpProtocol


class Worker(UvicornWorker):  # type: ignore[misc]  # it has no types
    """Fails to start when the app's lifespan does, and never lets a client wait for a websocket upgrade."""

    CONFIG_KWARGS: ClassVar[dict[str, Any]] = {
        "loop": "uvloop",
        "http": HttpProtocol,
        "ws": "none",
        "lifespan": "on",
        "server_header": False,
        "access_log": False,
    }
