"""One connection to one engine process, in the event loop: bytes in and out, and the news of its begin and end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

SEND_HWM = 1024
RECEIVE_HWM = 64  # small: what a busy worker does not read is merged in the engine, not queued here
RECONNECT_MS = 100
MESSAGES_A_TURN = 64  # then other tasks get a turn

_WATCHED_EVENTS = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED


class Connection:
    """One DEALER, from its first connect attempt until the engine is gone.

    Never reused for the next engine: a request that was queued for the lost one must not be begun by the next, where
    nobody waits for it. ZMQ's file descriptor only says that something changed, so each event is read until nothing
    is left, and looked for again after a send.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        on_connected: Callable[[], None],
        on_message: Callable[[bytes], None],
        on_disconnected: Callable[[], None],
    ) -> None:
        self._on_connected = on_connected
        self._on_message = on_message
        self._on_disconnected = on_disconnected
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, SEND_HWM)
        self._socket.setsockopt(zmq.RCVHWM, RECEIVE_HWM)
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self._monitor = self._socket.get_monitor_socket(_WATCHED_EVENTS)
        self._loop.add_reader(self._socket.FD, self._read)
        self._loop.add_reader(self._monitor.FD, self._read_events)
        self._socket.connect(address)
        # A ZMQ queue wakes only a reader that has found it empty once.
        self._loop.call_soon(self._read)
        self._loop.call_soon(self._read_events)
        # A socket's file descriptor only signals once it was found empty, so the monitor is looked at first.
        self._loop.call_soon(self._read_events)

    def send(self, data: bytes) -> bool:
        """Queue a message without waiting; False where the engine does not read."""
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._loop.call_soon(self._read)
        return True

    def close(self) -> None:
        """Drop the connection and all that is queued."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._socket.FD)
        self._loop.remove_reader(self._monitor.FD)
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()

    def _read(self) -> None:
        if self._read_messages(MESSAGES_A_TURN):
            self._loop.call_soon(self._read)

    def _read_messages(self, max_messages: int | None) -> bool:
        """Deliver up to `max_messages`; whether there may be more."""
        for _ in itertools.repeat(None) if max_messages is None else range(max_messages):
            if self._is_closed:
                return False
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self._on_message(data)
        return True

    def _read_events(self) -> None:
        while not self._is_closed:
            try:
                frames = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if parse_monitor_message(frames)["event"] == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._on_connected()
            else:
                self._read_messages(None)  # what the engine said last was received before the end
                self._on_disconnected()
