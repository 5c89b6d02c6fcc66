"""HTTP/1.1 responses without the network: bytes in, body bytes out. `http_client` does the reading.

Knows bodies of a given length, chunked bodies and bodies that end with the connection; everything is bounded.
"""

from __future__ import annotations

from appliance.errors import ApplianceError

MAX_HEAD_BYTES = 64 * 1024
_MAX_SIZE_LINE_BYTES = 1024
_MAX_CHUNK_DIGITS = 12


class HttpError(ApplianceError):
    """A request that got no proper answer: no connection, a broken response, a time limit."""


class ResponseParser:
    """One response. ``status`` and ``headers`` (names in lower case) are set as soon as the head is there."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self._buffer = b""
        self._left: int | None = 0  # bytes still to come of the body or of this chunk; None = until the end
        self._is_chunked = False
        self._in_trailer = False

    def feed(self, data: bytes) -> bytes:
        """The part of the body that `data` completes. Raises HttpError on what is no HTTP/1.1."""
        self._buffer += data
        if not self.status and not self._read_head():
            return b""
        if self.is_complete:
            return b""
        return self._read_chunks() if self._is_chunked else self._read_plain()

    def feed_eof(self) -> None:
        """The server closed the connection. Raises HttpError where that was too early."""
        if self.status and not self._is_chunked and self._left is None:
            self.is_complete = True
        if not self.is_complete:
            where = "in the middle of the response" if self.status else "without a response"
            raise HttpError(f"the server closed the connection {where}")

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise HttpError(f"the response's head is over {MAX_HEAD_BYTES} bytes")
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        self._buffer = self._buffer[end + 4 :]
        status = _read_status(lines[0])
        if 100 <= status < 200:
            return self._read_head()
        self.headers = dict(_split_header(line) for line in lines[1:])
        self.status = status
        self._choose_framing()
        return True

    def _choose_framing(self) -> None:
        self._is_chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if self._is_chunked:
            return
        if self.status in {204, 304}:
            length = "0"
        if length is not None and not length.isdigit():
            raise HttpError(f"the response's content-length is {length!r}")
        self._left = None if length is None else int(length)
        self.is_complete = self._left == 0

    def _read_plain(self) -> bytes:
        body, self._buffer = self._buffer, b""
        if self._left is not None:
            body = body[: self._left]
            self._left -= len(body)
            self.is_complete = self._left == 0
        return body

    def _read_chunks(self) -> bytes:
        parts = []
        while not self.is_complete:
            if self._left:
                part = self._take_chunk_data()
                parts.append(part)
                if self._left:
                    break
            elif not self._read_chunk_line():
                break
        return b"".join(parts)

    def _take_chunk_data(self) -> bytes:
        assert self._left is not None
        part = self._buffer[: self._left]
        self._buffer = self._buffer[len(part) :]
        self._left -= len(part)
        return part

    def _read_chunk_line(self) -> bool:
        """Read a size line, the empty line behind a chunk's data, or a line of the trailer."""
        line, found, rest = self._buffer.partition(b"\r\n")
        if not found:
            if len(self._buffer) > _MAX_SIZE_LINE_BYTES:
                raise HttpError("the response's chunks are broken: a size line does not end")
            return False
        self._buffer = rest
        if self._in_trailer:
            self.is_complete = not line
        elif line:
            self._left = _read_chunk_size(line)
            self._in_trailer = self._left == 0
        return True


def _read_status(line: str) -> int:
    words = line.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise HttpError(f"the answer is not HTTP/1.1: {line[:80]!r}")
    return int(words[1])


def _split_header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()


def _read_chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        if len(digits) > _MAX_CHUNK_DIGITS:
            raise ValueError
        return int(digits, 16)
    except ValueError:
        raise HttpError(f"the response's chunks are broken: size {line[:80]!r}") from None
