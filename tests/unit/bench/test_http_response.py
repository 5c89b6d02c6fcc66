"""Responses are read the same however they are cut up; broken ones are told in one line."""

from __future__ import annotations

import pytest

from appliance.bench.http_response import MAX_HEAD_BYTES, HttpError, ResponseParser

OK = b"HTTP/1.1 200 OK\r\n"
BODIES = {
    "length": OK + b"Content-Length: 11\r\n\r\nhello world",
    "chunked": OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nT: 1\r\n\r\n",
    "until the end": OK + b"A: b\r\n\r\nhello world",
    "behind an interim response": b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 11\r\n\r\nhello world",
}


@pytest.mark.parametrize("name", BODIES)
def test_split_anywhere(name: str) -> None:
    data = BODIES[name]
    for cut in range(1, len(data)):
        parser = ResponseParser()
        body = parser.feed(data[:cut]) + parser.feed(data[cut:])
        parser.feed_eof()
        assert (parser.status, body, parser.is_complete) == (200, b"hello world", True)


@pytest.mark.parametrize("name", BODIES)
def test_byte_by_byte(name: str) -> None:
    parser = ResponseParser()
    body = b"".join(parser.feed(bytes([byte])) for byte in BODIES[name])
    assert body == b"hello world"


def test_no_body() -> None:
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.1 204 No Content\r\n\r\n") == b""
    assert parser.is_complete


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "closed the connection without a response"),
        (OK + b"Content-Length: 5\r\n\r\nhel", "in the middle of the response"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "in the middle of the response"),
        (b"SSH-2.0-x\r\n\r\n", "not HTTP/1.1"),
        (OK + b"Content-Length: five\r\n\r\n", "content-length is 'five'"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "chunks are broken"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 2000, "a size line does not end"),
        (b"x" * (MAX_HEAD_BYTES + 1), "head is over"),
    ],
)
def test_broken(data: bytes, message: str) -> None:
    parser = ResponseParser()

    def read() -> None:
        parser.feed(data)
        parser.feed_eof()

    with pytest.raises(HttpError, match=message):
        read()
