"""`breadbox health`: one probe of the box that runs here, for a container's health check. Quick to import."""

from __future__ import annotations

import socket
from pathlib import Path

from appliance.settings import Settings
from appliance.supervisor.running import find_running

_TIMEOUT_S = 4.0


def check_health(run_dir: Path | None) -> int:
    """Print the status line of /health; returns 0 where it is 200, else 1. Raises NoBoxError."""
    try:
        status = _ask(find_running(run_dir))
    except OSError as error:
        print(f"no answer: {error.strerror or error}")
        return 1
    print(status)
    return 0 if " 200 " in f"{status} " else 1


def _ask(settings: Settings) -> str:
    with _connect(settings) as connection:
        connection.sendall(f"GET {settings.root_path}/health HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        return connection.makefile("rb").readline().decode("latin-1").strip()


def _connect(settings: Settings) -> socket.socket:
    if settings.uds:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_TIMEOUT_S)
        connection.connect(str(settings.uds))
        return connection
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    return socket.create_connection((address, settings.port), _TIMEOUT_S)
