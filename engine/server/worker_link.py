"""One API worker at the engine's end: what came from it, and what it is still to be told.

What a worker does not read in time is merged, at most one output a request, and encoded only when there is room.
"""

from __future__ import annotations

import logging
import socket
from collections import deque

from engine.frames import FrameReader, pack_frame
from engine.messages import EngineReply, Outputs, RequestOutput, encode, merge_outputs

logger = logging.getLogger(__name__)

SEND_BUFFER_BYTES = 64 * 1024  # small: what a busy worker does not read is merged here, not queued in the kernel
RECEIVE_BYTES = 64 * 1024  # at a time, then others get a turn
MAX_REPLIES = 1024  # answers kept: a worker may ask so much at once, before the first is sent
Message = RequestOutput | EngineReply


class WorkerLink:
    """A connection. None of its methods blocks or raises: `is_lost` says that the other end is gone, or unintelligible.

    ``is_awaited`` is the owner's: whether it is told when there is room for what is left.
    """

    def __init__(self, identity: bytes, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.identity = identity
        self.is_lost = False
        self.is_awaited = False
        self._socket = connection
        self._reader = FrameReader()
        self._outputs: dict[str, RequestOutput] = {}
        self._replies: deque[EngineReply] = deque(maxlen=MAX_REPLIES)
        self._unsent = memoryview(b"")

    def fileno(self) -> int:
        """For a poll."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for the worker to read."""
        return not self.is_lost and bool(self._unsent or self._replies or self._outputs)

    def receive(self) -> list[bytes]:
        """Messages that have come."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        if not data:
            self.is_lost = True
        try:
            return self._reader.feed(data)
        except ValueError as error:
            logger.warning("malformed message, worker dropped worker=%s error=%r", self.identity.decode(), str(error))
            self.is_lost = True
            return []

    def add(self, message: Message) -> None:
        """To be sent with the next `flush`."""
        if not isinstance(message, RequestOutput):
            self._replies.append(message)
        elif message.request_id in self._outputs:
            merge_outputs(self._outputs[message.request_id], message)
        else:
            self._outputs[message.request_id] = message

    def flush(self) -> None:
        """Send as much as the worker's end takes: answers first, then all outputs in one message."""
        while not self.is_lost and self._write_rest():
            if self._replies:
                self._unsent = memoryview(pack_frame(encode(self._replies.popleft())))
            elif self._outputs:
                self._unsent = memoryview(pack_frame(encode(Outputs(list(self._outputs.values())))))
                self._outputs.clear()
            else:
                return

    def _write_rest(self) -> bool:
        """Whether nothing is left of the message that was begun."""
        while self._unsent:
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                self.is_lost = True
                return False
        return True

    def close(self) -> None:
        """Let go of the connection. What was sent stays readable at the other end."""
        self._socket.close()
