"""The engine's end of the unix socket as a file: private, never taken from an engine that lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from engine.errors import ConfigError
from engine.socket_address import make_address

BACKLOG = 128


def bind(path: Path) -> socket.socket:
    """Listen at `path`, without ever blocking. Raises ConfigError where that cannot be."""
    address = make_address(path)
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    # A mode set after binding would leave a moment in which others may connect.
    umask = os.umask(0o177)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"socket_path: cannot listen on {path}: {str(error.strerror).lower()}") from error
    finally:
        os.umask(umask)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the file a killed engine left behind; refuse to take the socket from one that lives."""
    if not os.path.lexists(path):
        return
    if not path.is_socket():
        raise ConfigError(f"socket_path: {path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"socket_path: cannot use {path}: {error}") from error
        else:
            raise ConfigError(f"socket_path: another engine listens on {path}")
