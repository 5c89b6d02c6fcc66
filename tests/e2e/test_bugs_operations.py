"""Public faults of other servers, B41 to B50: keys, browsers, ids, probes, overload, and the proxy in front."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
import statistics
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.box.proxy import stock_nginx_before
from tests.box.running_box import RunningBox
from tests.e2e.caller import (
    CHAT,
    COMPLETIONS,
    ENDLESS,
    KEY,
    ORIGIN,
    Caller,
    chat_body,
    check_error,
    completion_body,
    exchange,
    read_chunks,
    text_of,
    wait_until,
)

GUARDED = [
    ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/docs/openapi.json"),
    ("GET", "/load"), ("GET", "/server_info"), ("GET", "/tokenizer_info"), ("POST", CHAT), ("POST", COMPLETIONS),
    ("POST", "/invocations"), ("POST", "/tokenize"), ("POST", "/detokenize"), ("POST", "/v1/embeddings"),
    ("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"), ("POST", "/v1/responses"),
    ("POST", "/reset_prefix_cache"), ("GET", "//v1/models"), ("GET", "/v1/../v1/models"), ("GET", "/V1/models"),
    ("GET", "/v1/models/"), ("GET", "/v1/models%2f"), ("GET", "/health/../v1/models"), ("GET", "/health/"),
    ("GET", "/health%2f..%2fv1/models"), ("GET", "/%76%31/models"), ("GET", "/health;/v1/models"),
]  # fmt: skip
HEADERS = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(autouse=True)
def unharmed(box: Caller) -> Any:
    yield
    box.check_canary()


def raw_status(request: bytes, connection: socket.socket) -> tuple[int, bytes]:
    connection.sendall(request)
    data = b""
    while part := connection.recv(65536):
        data += part
    return int(data.split(b" ")[1]), data.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_b41_no_route_is_outside_the_key_check(box: Caller, processes: RunningBox, method: str, path: str) -> None:
    request = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    address = urlsplit(box.url)
    with (
        socket.create_connection((address.hostname, address.port)) as proxied,
        socket.socket(socket.AF_UNIX) as direct,
    ):
        direct.connect(str(processes.run_dir / "api.sock"))
        answers = [raw_status(request, connection) for connection in (proxied, direct)]
    for status, body in answers:
        assert status == 401
        assert json.loads(body)["error"]["type"] == "authentication_error"


def test_b41_metrics_tell_no_secrets(box: Caller) -> None:
    marker = "secret-prompt-word"
    assert box.chat(marker, user="secret-user").status_code == 200
    text = box.http.get("/metrics").text
    for secret in (marker, KEY, "second-key", "secret-user"):
        assert secret not in text


PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os,x-stainless-retry-count",
}


def test_b43_a_preflight_needs_no_key(box: Caller) -> None:
    response = httpx.options(box.url + CHAT, headers={"origin": ORIGIN, **PREFLIGHT})
    assert response.status_code in (200, 204)
    assert response.headers.get_list("access-control-allow-origin") == [ORIGIN]
    assert "POST" in response.headers["access-control-allow-methods"]
    allowed = response.headers["access-control-allow-headers"].lower()
    assert all(name in allowed for name in PREFLIGHT["access-control-request-headers"].split(","))
    assert "origin" in response.headers["vary"].lower()


def test_b43_a_browser_may_read_every_answer(box: Caller) -> None:
    def post(path: str = CHAT, key: str | None = KEY, **fields: Any) -> httpx.Response:
        headers = {"origin": ORIGIN} | ({"authorization": f"Bearer {key}"} if key else {})
        return httpx.post(box.url + path, json=chat_body(**fields), headers=headers, timeout=60)

    big = httpx.post(box.url + CHAT, content=b"x" * 20_000_000, headers={"origin": ORIGIN}, timeout=60)
    answers = [post(), post(key=None), post(stream=True), post(n=0), post(path="/nowhere")]
    assert [answer.status_code for answer in answers] == [200, 401, 200, 400, 404]
    for answer in answers:
        for name in ("access-control-allow-origin", "vary", "x-request-id", "access-control-expose-headers"):
            assert len(answer.headers.get_list(name)) == 1, name
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "access-control-allow-credentials" not in answer.headers
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert big.status_code == 413


def test_b43_other_origins_get_nothing(box: Caller) -> None:
    other = {"origin": "http://evil.example", **HEADERS}
    refused = httpx.options(box.url + CHAT, headers={**other, **PREFLIGHT})
    answered = httpx.post(box.url + CHAT, json=chat_body(), headers=other, timeout=60)
    for response in (refused, answered):
        assert "access-control-allow-origin" not in response.headers


async def test_b44_two_requests_with_one_id(box: Caller) -> None:
    async with httpx.AsyncClient(base_url=box.url, headers={**HEADERS, "x-request-id": "dup-1"}, timeout=60) as client:
        forced = [
            chat_body(max_tokens=20, logit_bias={t: 100}, request_id="dup-1", stream=True) for t in ("2382", "4461")
        ]
        answers = await asyncio.gather(*(client.post(CHAT, json=body) for body in forced))
    chunks = [read_chunks(answer.text) for answer in answers]
    texts = ["".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in each) for each in chunks]
    assert texts == [" red" * 20, " blue" * 20]
    assert len({each[0]["id"] for each in chunks}) == 2
    assert [answer.headers.get_list("x-request-id") for answer in answers] == [["dup-1"], ["dup-1"]]


def test_b44_ids_are_cleaned_and_bounded(box: Caller) -> None:
    address = urlsplit(box.url)
    for value in (b"a" * 129, b"a\tb", "ü".encode(), b"two words", b"", b'x"y', b"{{7*7}}", b"a\x0bb"):
        head = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: " + value + b"\r\n\r\n"
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(head)
            answer = b""
            while part := connection.recv(65536):
                answer += part
        ids = [line for line in answer.split(b"\r\n") if line.lower().startswith(b"x-request-id:")]
        assert len(ids) == 1, answer
        made = ids[0].partition(b": ")[2]
        assert made.isalnum()
        assert len(made) == 32
    huge = httpx.get(box.url + "/version", headers={"x-request-id": "x" * 200_000})
    assert huge.status_code in (200, 431)
    assert len(huge.headers["x-request-id"]) <= 128


def test_b44_errors_and_the_log_have_the_id(box: Caller, processes: RunningBox) -> None:
    refused = box.post(CHAT, chat_body(n=0), **{"x-request-id": "trace-44-refused"})
    answered = box.post(CHAT, chat_body(), **{"x-request-id": "trace-44-answered"})
    assert refused.headers["x-request-id"] == "trace-44-refused"
    assert answered.headers["x-request-id"] == "trace-44-answered"
    wait_until(lambda: all(f"trace-44-{word}" in processes.output for word in ("refused", "answered")))


def saturating(number: int) -> dict[str, Any]:
    return completion_body(f"{number} bottles of", max_tokens=300, logit_bias=ENDLESS, stream=True)


async def test_b46_a_saturated_box_is_healthy(box: Caller) -> None:
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=box.url, headers=HEADERS, timeout=60, limits=limits) as client:

        async def hold(number: int) -> None:
            async with client.stream("POST", COMPLETIONS, json=saturating(number)) as response:
                async for _ in response.aiter_bytes():
                    pass

        tasks = [asyncio.create_task(hold(number)) for number in range(50)]
        await asyncio.to_thread(wait_until, lambda: box.metric("vllm:num_requests_running") > 10)
        for _ in range(5):
            for path in ("/livez", "/health", "/readyz"):
                response = await client.get(path)
                assert response.status_code == 200
                assert response.elapsed.total_seconds() < 1.5
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.to_thread(wait_until, lambda: box.metric("vllm:num_requests_running") == 0, 10)


def test_b46_an_engine_that_stands_still_is_not_ready(odd_box: Caller, odd_processes: RunningBox) -> None:
    engine = odd_processes.find("engine", "--index 0")[-1]
    engine.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: odd_box.http.get("/readyz").status_code == 503, 30)
        assert odd_box.http.get("/livez").status_code == 200
        assert odd_box.http.get("/health").status_code == 503
    finally:
        engine.send_signal(signal.SIGCONT)
    wait_until(lambda: odd_box.http.get("/readyz").status_code == 200, 30)
    assert odd_box.complete().status_code == 200


def test_b46_a_killed_engine_is_told_within_seconds_and_comes_back(odd_box: Caller, odd_processes: RunningBox) -> None:
    odd_processes.find("engine", "--index 0")[-1].kill()
    wait_until(lambda: odd_box.http.get("/readyz").status_code == 503, 10)
    response = odd_box.complete()
    if response.status_code != 200:
        check_error(response, 503, code="service_unavailable")
        assert int(response.headers["retry-after"]) >= 1
    report = odd_box.http.get("/readyz").json()
    assert report["models"][0].keys() >= {"phase", "percent"}
    wait_until(lambda: odd_box.http.get("/readyz").status_code == 200, 60)
    assert odd_box.complete().status_code == 200


async def call_in_colour(client: httpx.AsyncClient, number: int) -> str | None:
    """What is wrong with the answer of one of many clients; some leave early."""
    token, word = (("2382", " red"), ("4461", " blue"))[number % 2]
    max_tokens = 3 + number % 20
    body = chat_body("say", max_tokens=max_tokens, logit_bias={token: 100}, stream=number % 4 < 2)
    if number % 10 == 9:
        with contextlib.suppress(TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(random.uniform(0.05, 1.0)):
                await client.post(CHAT, json=body)
        return None
    response = await client.post(CHAT, json=body)
    if response.status_code in (429, 503):
        return None if response.headers.get("retry-after") and "error" in response.json() else "bad refusal"
    if response.status_code != 200:
        return f"status {response.status_code}"
    if body["stream"]:
        chunks = read_chunks(response.text)
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    else:
        text = str(text_of(response.json()["choices"][0]))
    return None if text == word * max_tokens else f"{number}: {text[:50]!r}"


async def poll(client: httpx.AsyncClient, until: asyncio.Event) -> float:
    slowest = 0.0
    while not until.is_set():
        for path in ("/health", "/metrics"):
            response = await client.get(path)
            assert response.status_code == 200
            slowest = max(slowest, response.elapsed.total_seconds())
        await asyncio.sleep(0.2)
    return slowest


async def test_b49_nobody_gets_anothers_answer(box: Caller) -> None:
    before = statistics.median(box.chat().elapsed.total_seconds() for _ in range(3))
    over = asyncio.Event()
    limits = httpx.Limits(max_connections=250)
    async with httpx.AsyncClient(base_url=box.url, headers=HEADERS, timeout=120, limits=limits) as client:
        polling = asyncio.create_task(poll(client, over))
        problems = await asyncio.gather(*(call_in_colour(client, number) for number in range(200)))
        over.set()
        assert await polling < 3
    assert [problem for problem in problems if problem] == []
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    await asyncio.to_thread(wait_until, lambda: not any(box.metric(f"vllm:{name}") for name in names), 5)
    assert statistics.median(box.chat().elapsed.total_seconds() for _ in range(3)) < 2 * before + 0.5


async def test_b49_ten_at_once_are_served_alike(box: Caller) -> None:
    async with httpx.AsyncClient(base_url=box.url, headers=HEADERS, timeout=60) as client:
        body = chat_body("say", max_tokens=12, logit_bias={"2382": 100})
        answers = await asyncio.gather(*(client.post(CHAT, json=body) for _ in range(10)))
    times = [answer.elapsed.total_seconds() for answer in answers]
    assert max(times) <= 3 * statistics.median(times)


async def arrivals(url: str) -> list[float]:
    body = chat_body("Tell a long story", max_tokens=60, logit_bias=ENDLESS, stream=True)
    started = time.monotonic()
    headers = {**HEADERS, "accept-encoding": "gzip"}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", url + CHAT, json=body, headers=headers) as response,
    ):
        assert "content-encoding" not in response.headers
        return [time.monotonic() - started async for _ in response.aiter_raw()]


async def test_b50_streams_arrive_piece_by_piece_even_through_another_proxy(box: Caller) -> None:
    with stock_nginx_before(urlsplit(box.url).port or 80) as port:
        for url in (box.url, f"http://127.0.0.1:{port}"):
            times = await arrivals(url)
            assert len(set(times)) >= 30
            assert times[0] < 0.5 * times[-1]


def test_b50_an_idle_connection_serves_again(box: Caller) -> None:
    with httpx.Client(base_url=box.url, headers=HEADERS, timeout=30) as client:
        for pause in [6.0, *[0.0] * 200]:
            assert client.post("/tokenize", json={"prompt": "hi"}).status_code == 200
            time.sleep(pause)


def test_b50_large_bodies(box: Caller) -> None:
    for size in (1_500_000, 20_000_000):
        response = box.post(CHAT, chat_body("a " * (size // 2)))
        param = response.json()["error"]["param"]
        message = check_error(response, 400 if size < 8_000_000 else 413, param, within_s=20)
        assert any(word.isdecimal() for word in message.split())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "//v1/chat/completions", 404),
        ("POST", "/v1/v1/chat/completions", 404),
        ("GET", "/v1/chat/completions", 405),
    ],
)
def test_b50_odd_paths_get_a_hint(box: Caller, method: str, path: str, status: int) -> None:
    response = box.http.request(method, httpx.URL(box.url + path), json=chat_body() if method == "POST" else None)
    message = check_error(response, status)
    assert "/v1/chat/completions" in message or "POST" in message
    assert box.http.head("/health").status_code == 200


def test_b50_ways_to_send_a_body(box: Caller) -> None:
    body = json.dumps(chat_body()).encode()
    chunked = box.http.post(CHAT, content=iter([body[:20], body[20:]]), headers={"content-type": "application/json"})
    assert chunked.status_code == 200
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer {KEY}\r\n"
    waits = f"{head}Expect: 100-continue\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    answer = exchange(box, waits.encode() + body)
    assert answer.startswith(b"HTTP/1.1 100 ")
    assert b"HTTP/1.1 200 " in answer
    old = exchange(box, head.replace("1.1", "1.0").encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert b" 200 " in old.split(b"\r\n")[0]


def test_b50_each_post_is_generated_once(box: Caller) -> None:
    def finished() -> float:
        return box.metric("vllm:request_success_total")

    before = finished()
    for _ in range(5):
        assert box.complete(max_tokens=1).status_code == 200
    wait_until(lambda: finished() == before + 5)


def test_b50_a_dead_upstream_is_told_in_the_envelope(odd_box: Caller, odd_processes: RunningBox) -> None:
    master = odd_processes.find("gunicorn")[0]
    master.suspend()  # or its worker would come back at once
    workers = odd_processes.find("gunicorn")[1:]
    for worker in workers:
        worker.kill()
    master.kill()
    statuses = set()

    def is_back() -> bool:
        response = odd_box.http.get("/v1/models")
        statuses.add(response.status_code)
        if response.status_code != 200:
            check_error(response, response.status_code)
        return response.status_code == 200

    wait_until(is_back, 60)
    assert statuses <= {200, 502, 503, 504}
    wait_until(lambda: odd_box.http.get("/readyz").status_code == 200, 30)


def test_b50_heartbeats_keep_a_waiting_stream_open(odd_box: Caller) -> None:
    long = completion_body(max_tokens=400, logit_bias=ENDLESS)
    ahead = threading.Thread(target=lambda: httpx.post(odd_box.url + COMPLETIONS, json=long, timeout=90))
    ahead.start()
    wait_until(lambda: odd_box.metric("vllm:num_requests_running") == 1)
    waiting = odd_box.complete(stream=True)
    ahead.join(90)
    assert waiting.text.startswith(": keep-alive\n\n")
    assert read_chunks(waiting.text)[-1]["choices"][0]["finish_reason"] == "length"
