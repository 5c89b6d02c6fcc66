"""The engine's end of the unix socket as a file: private, never taken from an engine that lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import zmq

from engine.errors import ConfigError
from engine.socket_address import make_address

SEND_HWM = 64  # messages in flight to one worker; what comes on top is merged
RECEIVE_HWM = 1024


def bind(context: zmq.Context[zmq.Socket[bytes]], path: Path) -> zmq.Socket[bytes]:
    """Make the ROUTER that listens at `path`. Raises ConfigError where that cannot be."""
    address = make_address(path)
    _remove_stale(path)
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.SNDHWM, SEND_HWM)
    router.setsockopt(zmq.RCVHWM, RECEIVE_HWM)
    # A mode set after binding would leave a moment in which others may connect.
    umask = os.umask(0o177)
    try:
        router.bind(address)
    except zmq.ZMQError as error:
        router.close(linger=0)
        raise ConfigError(f"socket_path: cannot listen on {path}: {error.strerror.lower()}") from error
    finally:
        os.umask(umask)
    return router


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
