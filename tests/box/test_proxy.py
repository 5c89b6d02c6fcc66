"""The proxy alone: what it answers itself, and what it passes on."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import httpx
import psutil
import pytest

from appliance.settings import Settings
from appliance.supervisor.rendering import render_box
from tests.box.proxy import make_proxy_dirs, make_settings, running_nginx, running_proxy, short_dir, stock_nginx_before

Handler = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def proxy() -> Iterator[Settings]:
    with running_proxy(max_body_bytes=100_000) as settings:
        yield settings


@pytest.fixture
async def client(proxy: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{proxy.port}", timeout=20) as client:
        yield client


@asynccontextmanager
async def upstream(settings: Settings, handle: Handler) -> AsyncIterator[list[bytes]]:
    """Play the API; yields the heads of the requests that arrived."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                heads.append(head)
                await handle(head, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    assert settings.run_dir
    path = settings.run_dir / "api.sock"
    server = await asyncio.start_unix_server(serve, path)
    try:
        yield heads
    finally:
        server.close()
        path.unlink()


async def answer_ok(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}")
    await writer.drain()


def check_envelope(response: httpx.Response, status: int, code: str) -> None:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code


async def test_without_an_api_the_answer_is_a_503_in_the_envelope(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/chat/completions", json={})
    check_envelope(response, 503, "service_unavailable")
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["type"] == "service_unavailable"


async def test_a_proxy_without_files_says_so_and_goes_on() -> None:
    with running_proxy() as settings:
        assert settings.run_dir
        url = f"http://127.0.0.1:{settings.port}"
        async with upstream(settings, answer_ok), httpx.AsyncClient(base_url=url, timeout=20) as client:
            # nginx answers this one itself, so its worker has our connection and none to the API.
            assert (await client.request("TRACE", "/")).status_code == 405
            (worker,) = psutil.Process(int((settings.run_dir / "nginx.pid").read_text())).children()
            soft, hard = worker.rlimit(psutil.RLIMIT_NOFILE)
            worker.rlimit(psutil.RLIMIT_NOFILE, (worker.num_fds(), hard))
            response = await client.get("/v1/models")
            check_envelope(response, 503, "service_unavailable")
            assert response.headers["retry-after"] == "1"
            visit = await client.get("/", headers={"accept": "text/html"})
            check_envelope(visit, 503, "service_unavailable")
            # Whoever ends a box that is not alive would end its requests, too.
            assert (await client.get("/livez")).status_code == 200
            assert (await client.get("/readyz")).status_code == 503
            worker.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
            assert (await client.get("/v1/models")).status_code == 200


async def test_the_apis_own_500_passes_as_it_is(client: httpx.AsyncClient, proxy: Settings) -> None:
    async def answer_500(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}")
        await writer.drain()

    async with upstream(proxy, answer_500):
        response = await client.get("/")
    assert (response.status_code, response.text) == (500, "{}")
    assert "retry-after" not in response.headers


async def test_the_callers_request_id_comes_back_on_the_proxys_own_errors(client: httpx.AsyncClient) -> None:
    assert (await client.get("/", headers={"x-request-id": "mine-1"})).headers["x-request-id"] == "mine-1"
    for bad in ("x" * 300, 'a"b', "a b"):
        assert (await client.get("/", headers={"x-request-id": bad})).headers["x-request-id"] != bad


async def test_a_body_over_the_limit_is_a_413_that_names_it(client: httpx.AsyncClient, proxy: Settings) -> None:
    async with upstream(proxy, answer_ok) as heads:
        response = await client.post("/v1/chat/completions", content=b"x" * 100_001)
    check_envelope(response, 413, "request_too_large")
    assert "100000 bytes" in response.json()["error"]["message"]
    assert heads == []


async def test_a_chunked_body_over_the_limit_is_a_413(client: httpx.AsyncClient, proxy: Settings) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 10_000

    async with upstream(proxy, answer_ok):
        check_envelope(await client.post("/", content=chunks()), 413, "request_too_large")


async def test_long_urls_and_headers(client: httpx.AsyncClient) -> None:
    check_envelope(await client.get("/" + "x" * 40_000), 414, "uri_too_long")
    check_envelope(await client.get("/", headers={"x-long": "x" * 40_000}), 431, "headers_too_large")


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad_request"),
        (b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405, "method_not_allowed"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "not_implemented"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505, "http_version_not_supported"),
        (b"TRACE / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "bad_request"),
    ],
)
def test_what_is_not_http_gets_json_too(proxy: Settings, request_bytes: bytes, status: int, code: str) -> None:
    head, body = exchange(proxy, request_bytes)
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Content-Type: application/json" in head
    assert json.loads(body)["error"]["code"] == code


async def test_requests_are_passed_on_unchanged(proxy: Settings) -> None:
    request = (
        b"GET //v1//models/../x%2Fy?q=%20 HTTP/1.1\r\nHost: me\r\nX-Request-Id: mine\r\nAuthorization: Bearer k\r\n"
        b"Connection: close\r\n\r\n"
    )
    async with upstream(proxy, answer_ok) as heads:
        await asyncio.to_thread(exchange, proxy, request)
        await asyncio.to_thread(exchange, proxy, b"GET / HTTP/1.1\r\nHost: me\r\nConnection: close\r\n\r\n")
    first, second = (head.decode() for head in heads)
    assert first.startswith("GET //v1//models/../x%2Fy?q=%20 HTTP/1.1\r\n")
    headers = dict(line.split(": ", 1) for line in first.strip().split("\r\n")[1:])
    assert headers == {
        "Host": "me",
        "X-Request-Id": "mine",
        "X-Forwarded-For": "127.0.0.1",
        "X-Forwarded-Proto": "http",
        "Authorization": "Bearer k",
    }
    assert "X-Request-Id: " in second


async def test_http_1_0_clients_are_served(proxy: Settings) -> None:
    async with upstream(proxy, answer_ok) as heads:
        head, body = await asyncio.to_thread(exchange, proxy, b"GET / HTTP/1.0\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == b"{}"
    assert b"Host: _\r\n" in heads[0] or b"Host: 127.0.0.1" in heads[0]


def exchange(settings: Settings, request: bytes) -> tuple[bytes, bytes]:
    with socket.create_connection(("127.0.0.1", settings.port), timeout=10) as connection:
        connection.sendall(request)
        data = b""
        while part := connection.recv(65536):
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    return head, body


async def test_a_post_is_never_sent_twice(client: httpx.AsyncClient, proxy: Settings) -> None:
    async def die(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with upstream(proxy, die) as heads:
        check_envelope(await client.post("/v1/completions", json={}), 503, "service_unavailable")
    assert len(heads) == 1


async def test_errors_of_the_api_pass_untouched(client: httpx.AsyncClient, proxy: Settings) -> None:
    body = b'{"error": {"message": "mine"}}'

    async def refuse(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 503 X\r\nRetry-After: 7\r\nx-request-id: theirs\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        writer.write(body)

    async with upstream(proxy, refuse):
        response = await client.get("/v1/models")
    assert (response.status_code, response.content) == (503, body)
    assert response.headers.get_list("retry-after") == ["7"]
    assert response.headers.get_list("x-request-id") == ["theirs"]


async def test_the_client_going_away_is_seen_upstream(proxy: Settings) -> None:
    gone = asyncio.Event()

    async def stream(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        assert await reader.read() == b""
        gone.set()

    async with upstream(proxy, stream):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        await reader.readuntil(b"hello")
        writer.close()
        await asyncio.wait_for(gone.wait(), 10)


async def arrival_order(port: int, settings: Settings) -> int:
    """Chunks that arrived before the next was sent, of 30."""
    turn = asyncio.Semaphore(1)

    async def stream(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(30):
            await asyncio.wait_for(turn.acquire(), 10)
            event = b"data: %d\n\n" % number
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        writer.write(b"0\r\n\r\n")

    num_events = 0
    async with (
        upstream(settings, stream),
        httpx.AsyncClient(timeout=20) as client,
        client.stream(
            "POST", f"http://127.0.0.1:{port}/", headers={"accept-encoding": "gzip"}, content=b"{}"
        ) as response,
    ):
        assert "content-encoding" not in response.headers
        async for chunk in response.aiter_raw():
            num_events += chunk.count(b"data:")
            turn.release()
    return num_events


async def test_each_event_arrives_before_the_next_is_sent(proxy: Settings) -> None:
    assert await arrival_order(proxy.port, proxy) == 30


async def test_so_it_does_through_a_second_proxy_with_default_buffering(proxy: Settings) -> None:
    with stock_nginx_before(proxy.port) as port:
        assert await arrival_order(port, proxy) == 30


def test_a_unix_socket_instead_of_a_port() -> None:
    with short_dir() as folder:
        path = folder / "box.sock"
        with running_proxy(uds=path), httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            check_envelope(client.get("http://localhost/health"), 503, "service_unavailable")
        assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else; others are that already")
def test_it_runs_as_any_user(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = 65534
    monkeypatch.setattr("os.geteuid", lambda: nobody)
    with short_dir() as run_dir:
        settings = make_settings(run_dir)
        render_box(settings, "secret")
        make_proxy_dirs(run_dir)
        for path in (run_dir, *run_dir.rglob("*")):
            os.chown(path, nobody, nobody)
        with running_nginx(run_dir / "nginx.conf", settings.port, user=nobody):
            check_envelope(httpx.get(f"http://127.0.0.1:{settings.port}/health"), 503, "service_unavailable")
