"""The whole box through its front door: unmodified clients, streams that stream, clients that leave."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import time
from typing import Any

import httpx
import openai
import pytest

from tests.box.proxy import stock_nginx_before
from tests.box.running_box import RunningBox, gauge

MODEL = "SmolLM2-135M-Instruct"
# The end-of-text tokens are forbidden, so that an answer is as long as was asked for.
STORY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell a long story"}],
    "logit_bias": {"2": -100, "0": -100},
    "temperature": 0,
    "max_tokens": 60,
}


@pytest.fixture
def client(box: RunningBox) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{box.url}/v1", api_key="none", timeout=60, max_retries=0)


def test_the_printed_curl_line_answers(box: RunningBox) -> None:
    (line,) = (line for line in box.output.splitlines() if line.strip().startswith("curl "))
    answer = subprocess.run(shlex.split(line), capture_output=True, timeout=120, check=True).stdout
    assert b'"chat.completion"' in answer


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


@pytest.mark.exact
def test_chat_is_the_same_streamed_and_not(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "What is the capital of France?"}]
    whole = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=20)
    stream = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=20, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "Paris" in (whole.choices[0].message.content or "")
    assert "".join(pieces) == whole.choices[0].message.content
    assert len([piece for piece in pieces if piece]) > 3


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=5)
    assert "Paris" in answer.choices[0].text
    assert answer.usage
    assert answer.usage.completion_tokens == 5


async def arrivals(port: int) -> tuple[list[float], str]:
    """When the pieces of a 60-token stream arrived, counted from the request, and the text."""
    times: list[float] = []
    text = ""
    sent = time.monotonic()
    async with httpx.AsyncClient(timeout=120) as client:
        request = {**STORY, "stream": True}
        async with client.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=request) as response:
            assert response.status_code == 200
            async for chunk in response.aiter_bytes():
                times.append(time.monotonic() - sent)
                text += chunk.decode()
    return times, text


async def test_streams_arrive_piece_by_piece(box: RunningBox) -> None:
    times, text = await arrivals(box.port)
    assert len(set(times)) >= 30
    assert times[0] < 0.6 * times[-1]
    assert text.endswith("data: [DONE]\n\n")


async def test_so_they_do_through_a_second_proxy(box: RunningBox) -> None:
    with stock_nginx_before(box.port) as port:
        times, _ = await arrivals(port)
    assert len(set(times)) >= 30
    assert times[0] < 0.6 * times[-1]


def test_errors_are_in_the_envelope(box: RunningBox) -> None:
    cases = [
        ("POST", "/v1/chat/completions", {"content": b"x" * 20_000_000}, 413),
        ("POST", "/v1/completions", {"json": {"model": MODEL, "prompt": "a " * 750_000}}, 400),
        ("POST", "/v1/chat/completions", {"content": b"{"}, 400),
        ("POST", "/v1/chat/completions", {"json": STORY | {"model": "other"}}, 404),
        ("POST", "/v1/chat/completions/", {"json": STORY}, 404),
        ("POST", "//v1/chat/completions", {"json": STORY}, 404),
        ("POST", "/v1/v1/chat/completions", {"json": STORY}, 404),
        ("GET", "/v1/chat/completions", {}, 405),
    ]
    for method, path, body, status in cases:
        response = httpx.request(method, box.url + path, timeout=60, **body)  # type: ignore[arg-type]
        assert response.status_code == status, (path, response.text[:200])
        assert response.json()["error"].keys() >= {"message", "type", "param", "code"}
        assert len(response.headers.get_list("x-request-id")) == 1


def test_a_kept_connection_serves_many_requests(box: RunningBox) -> None:
    with httpx.Client(base_url=box.url, timeout=30) as client:
        assert {client.post("/tokenize", json={"model": MODEL, "prompt": "hi"}).status_code for _ in range(200)} == {
            200
        }


async def open_and_drop(box: RunningBox, after_s: float) -> None:
    """A client that sends a request, reads what comes for a while, and goes."""
    body = json.dumps({**STORY, "max_tokens": 200, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", box.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: box\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    try:
        async with asyncio.timeout(after_s):
            await reader.read()
    except TimeoutError:
        writer.close()


async def test_200_dropped_streams_leave_nothing_behind(box: RunningBox) -> None:
    aborted_before = gauge(box, "vllm:request_success_total", 'finished_reason="abort"')
    await asyncio.gather(*(open_and_drop(box, 0.5) for _ in range(200)))
    started = time.monotonic()
    small = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    async with httpx.AsyncClient(base_url=box.url, timeout=60) as client:
        response = await client.post("/v1/chat/completions", json=small)
    assert response.status_code == 200
    assert time.monotonic() - started < 5
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    await asyncio.to_thread(box.wait_until, lambda: not any(gauge(box, name) for name in names), 5)
    assert gauge(box, "vllm:request_success_total", 'finished_reason="abort"') > aborted_before
