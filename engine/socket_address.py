"""The engine's address: a unix socket path, checked once for both ends, the server and the client."""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import ConfigError

MAX_PATH_BYTES = 107  # sockaddr_un.sun_path, less its closing zero byte


def make_address(socket_path: Path) -> str:
    """The absolute path of a socket. Raises ConfigError where the system has no room for it."""
    path = str(socket_path.absolute())
    num_bytes = len(os.fsencode(path))
    if num_bytes > MAX_PATH_BYTES:
        raise ConfigError(f"socket_path: {path} is {num_bytes} bytes long, a unix socket allows {MAX_PATH_BYTES}")
    return path
