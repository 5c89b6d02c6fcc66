"""Messages on a stream socket: each behind its length in bytes (8 bytes, little endian). No torch."""

from __future__ import annotations

import struct

_LENGTH = struct.Struct("<Q")
_HEAD_BYTES = _LENGTH.size
MAX_MESSAGE_BYTES = 1 << 32  # a length beyond it is no length: the other end does not speak this protocol


def pack_frame(message: bytes) -> bytes:
    """One message as it goes over the socket."""
    return _LENGTH.pack(len(message)) + message


class FrameReader:
    """Puts messages together again, however the socket has cut them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that these bytes complete, in order. Raises ValueError where they are no messages."""
        if not self._buffer and int.from_bytes(data[:_HEAD_BYTES], "little") == len(data) - _HEAD_BYTES:
            return [data[_HEAD_BYTES:]]  # nearly always: one message, whole
        self._buffer += data
        messages = []
        start, end = 0, len(self._buffer)
        while end - start >= _LENGTH.size:
            stop = start + _LENGTH.size + _read_length(self._buffer, start)
            if stop > end:
                break
            messages.append(bytes(self._buffer[start + _LENGTH.size : stop]))
            start = stop
        del self._buffer[:start]
        return messages


def _read_length(data: bytes | bytearray, start: int) -> int:
    (length,) = _LENGTH.unpack_from(data, start)
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return int(length)
