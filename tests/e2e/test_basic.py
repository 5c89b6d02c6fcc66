"""The small routes, content types, load, and clients that leave."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest

from appliance import __version__
from tests.e2e.caller import (
    CHAT,
    COMPLETIONS,
    ENDLESS,
    MODEL,
    Caller,
    chat_body,
    check_error,
    completion_body,
    wait_until,
)

LONG: dict[str, Any] = chat_body("Tell a long story", max_tokens=200, logit_bias=ENDLESS)


def test_version(box: Caller) -> None:
    assert box.http.get("/version").json() == {"version": __version__}


def test_health(box: Caller) -> None:
    for path in ("/health", "/ping"):
        response = box.http.get(path)
        assert (response.status_code, response.content) == (200, b"")
    assert box.http.post("/ping").status_code == 200
    assert box.http.head("/health").status_code == 200


def test_models(box: Caller) -> None:
    cards = box.http.get("/v1/models").json()
    assert cards["object"] == "list"
    assert [card["id"] for card in cards["data"]] == [MODEL, "smol"]
    for card in cards["data"]:
        assert (card["object"], card["root"], card["max_model_len"]) == ("model", MODEL, 8192)
        assert box.http.get(f"/v1/models/{card['id']}").json() == card
    check_error(box.http.get("/v1/models/other"), 404, "model", "model_not_found")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_content_types(box: Caller, path: str) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],"prompt":"x","tokens":[1],"max_tokens":1}'
    for wrong in ("text/plain", "application/x-www-form-urlencoded", None):
        headers = {"content-type": wrong} if wrong else {}
        assert "application/json" in check_error(box.http.post(path, content=body, headers=headers), 400)
    charset = {"content-type": "application/json; charset=utf-8"}
    assert box.http.post(path, content=body, headers=charset).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_load_counts_until_the_last_byte(box: Caller, stream: bool) -> None:
    def load() -> int:
        return int(box.http.get("/load").json()["server_load"])

    wait_until(lambda: load() == 0)
    headers = dict(box.http.headers)

    def call() -> None:
        body = LONG | {"stream": stream, "max_tokens": 40}
        assert httpx.post(box.url + CHAT, json=body, headers=headers, timeout=60).status_code == 200

    thread = threading.Thread(target=call)
    thread.start()
    wait_until(lambda: load() == 1)
    thread.join(60)
    wait_until(lambda: load() == 0)


async def drop(client: httpx.AsyncClient, stream: bool) -> None:
    try:
        async with asyncio.timeout(0.5), client.stream("POST", CHAT, json=LONG | {"stream": stream}) as response:
            async for _ in response.aiter_bytes():
                pass
    except (TimeoutError, httpx.HTTPError):
        pass


async def test_200_dropped_requests_leave_room_for_a_small_one(box: Caller) -> None:
    limits = httpx.Limits(max_connections=250)
    headers = {"authorization": box.http.headers.get("authorization", "")}
    async with httpx.AsyncClient(base_url=box.url, headers=headers, timeout=60, limits=limits) as client:
        await asyncio.gather(*(drop(client, number % 2 == 0) for number in range(200)))
        started = time.monotonic()
        assert (await client.post(CHAT, json=chat_body())).status_code == 200
        assert time.monotonic() - started < 5
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    await asyncio.to_thread(wait_until, lambda: not any(box.metric(f"vllm:{name}") for name in names), 5)


def test_status_is_counted_by_class(box: Caller) -> None:
    def count(status: str) -> float:
        return box.metric("http_requests_total", f'handler="{COMPLETIONS}"', f'status="{status}"')

    before = count("2xx"), count("4xx"), count("5xx")
    assert box.complete().status_code == 200
    for wrong in ({"n": 0}, {"model": "other"}, {"max_tokens": 10**40}, {"prompt": [10**40]}, {"temperature": "x"}):
        assert box.post(COMPLETIONS, completion_body() | wrong).status_code in (400, 404)
    # Another worker may answer the scrape; its files lag a moment at most.
    wait_until(lambda: (count("2xx"), count("4xx"), count("5xx")) == (before[0] + 1, before[1] + 5, before[2]))
