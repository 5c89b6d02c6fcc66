"""Public faults of other servers, B22 to B32: streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import statistics
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import psutil
import pytest

from tests.box.running_box import RunningBox
from tests.e2e.caller import (
    CHAT,
    COMPLETIONS,
    CONTEXT,
    ENDLESS,
    KEY,
    MODEL,
    Caller,
    chat_body,
    check_error,
    completion_body,
    exchange,
    read_chunks,
    text_of,
    wait_until,
)


@pytest.mark.parametrize(
    ("prompt", "constraint"),
    [("你好 " * 6 + "你好", {}), ("😀 " * 6 + "😀", {"structured_outputs": {"regex": "(😀 ?){6}"}})],
)
def test_b22_characters_are_never_split(box: Caller, prompt: str, constraint: dict[str, Any]) -> None:
    body = completion_body(prompt, max_tokens=24, **constraint)
    text = text_of(box.both(COMPLETIONS, body)["choices"][0]) or ""
    assert "�" not in text
    assert not any("�" in choice["text"] for choice in box.stream(COMPLETIONS, body).choices())
    assert any(not character.isascii() for character in text)


def test_b22_characters_that_a_schema_forces(box: Caller) -> None:
    wanted = "你好，世界 😀"
    schema = {
        "type": "object",
        "properties": {"v": {"type": "string", "enum": [wanted]}},
        "required": ["v"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    body = chat_body("go", max_tokens=64, response_format=form)
    answer = box.both(CHAT, body)
    assert json.loads(text_of(answer["choices"][0]) or "") == {"v": wanted}


RED = {"logit_bias": {"2382": 100}, "max_tokens": 8}


@pytest.mark.parametrize(("path", "make"), [(COMPLETIONS, completion_body), (CHAT, chat_body)])
def test_b23_a_stop_string_over_several_tokens(box: Caller, path: str, make: Any) -> None:
    body = make("x", **RED, stop=["red red red"])
    answer = box.both(path, body)
    assert (text_of(answer["choices"][0]), answer["choices"][0]["finish_reason"]) == (" ", "stop")
    assert answer["choices"][0]["stop_reason"] == "red red red"
    assert answer["usage"]["completion_tokens"] == 3
    assert not any("red" in (choice.get("text") or "") for choice in box.stream(path, body).choices())


@pytest.mark.parametrize(("path", "make"), [(COMPLETIONS, completion_body), (CHAT, chat_body)])
def test_b23_a_near_miss_loses_nothing(box: Caller, path: str, make: Any) -> None:
    answer = box.both(path, make("x", **RED, stop=["red blue"]))
    assert (text_of(answer["choices"][0]), answer["choices"][0]["finish_reason"]) == (" red" * 8, "length")
    assert answer["usage"]["completion_tokens"] == 8


def test_b23_a_stop_string_in_natural_text(box: Caller) -> None:
    answer = box.both(COMPLETIONS, completion_body("1 2 3 4 5 6 7 8 9 10 11 12", max_tokens=40, stop=["17 18"]))
    text = text_of(answer["choices"][0]) or ""
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "16" in text
    assert "17 18" not in text


@pytest.mark.parametrize(("token", "text"), [("198", "\n"), ("216", " "), ("2382", " red")])
@pytest.mark.parametrize(("path", "make"), [(COMPLETIONS, completion_body), (CHAT, chat_body)])
def test_b25_whitespace_survives(box: Caller, path: str, make: Any, token: str, text: str) -> None:
    body = make("x", logit_bias={token: 100})
    assert text_of(box.both(path, body)["choices"][0]) == text * 4
    pieces = [
        choice.get("text") or choice.get("delta", {}).get("content") for choice in box.stream(path, body).choices()
    ]
    assert "".join(piece for piece in pieces if piece) == text * 4


def test_b26_finish_reason_is_null_then_exactly_once(box: Caller) -> None:
    stream = box.stream(CHAT, chat_body("Count", max_tokens=5, logit_bias=ENDLESS))
    choices = stream.choices()
    assert all("finish_reason" in choice for choice in choices)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert choices[0]["delta"]["role"] == "assistant"
    assert not any("role" in choice["delta"] for choice in choices[1:])
    with openai.OpenAI(base_url=f"{box.url}/v1", api_key=KEY) as client:
        parsed = list(
            client.chat.completions.create(**chat_body("Count", max_tokens=5, logit_bias=ENDLESS), stream=True)
        )
    assert [chunk.choices[0].finish_reason for chunk in parsed][-1] == "length"


BRIEF = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0}


@pytest.mark.parametrize("options", ["absent", None, {}, {"include_usage": False}])
def test_b28_no_usage_unless_asked(box: Caller, options: Any) -> None:
    body = BRIEF if options == "absent" else {**BRIEF, "stream_options": options}
    stream = box.stream(CHAT, body)
    assert not any("usage" in chunk or not chunk["choices"] for chunk in stream.chunks)


@pytest.mark.parametrize("end", [{}, {"stop": [" "]}, {"logit_bias": {"2": 100}}])
def test_b28_usage_when_asked(box: Caller, end: dict[str, Any]) -> None:
    stream = box.stream(CHAT, {**BRIEF, **end, "stream_options": {"include_usage": True}})
    *chunks, last = stream.chunks
    assert last["choices"] == []
    assert all(chunk.get("usage") is None for chunk in chunks)
    assert {(chunk["id"], chunk["model"], chunk["created"]) for chunk in stream.chunks} == {
        (last["id"], MODEL, last["created"])
    }
    collected = box.post(CHAT, {**BRIEF, **end}).json()["usage"]
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [last["usage"][name] for name in counts] == [collected[name] for name in counts]
    assert collected["total_tokens"] == collected["prompt_tokens"] + collected["completion_tokens"]


def test_b28_wrong_usage_options(box: Caller) -> None:
    wrong = box.post(CHAT, {**BRIEF, "stream": True, "stream_options": {"include_usage": "yes"}})
    check_error(wrong, 400, "stream_options.include_usage")
    alone = box.post(CHAT, {**BRIEF, "stream": False, "stream_options": {"include_usage": True}})
    check_error(alone, 400, "stream_options")


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": [{"role": "user", "content": "hello " * (CONTEXT + 200)}]},
        {"messages": [{"role": "narrator", "content": "x"}]},
        {"temperature": 5},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objekt"}}}},
        {"structured_outputs": {"regex": "(["}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}], "tool_choice": "required"},  # noqa: E501
        {"messages": [{"role": "user", "content": "x"}], "continue_final_message": True, "add_generation_prompt": True},
    ],
)  # fmt: skip
def test_b29_a_bad_request_fails_alike_streamed_or_not(box: Caller, wrong: dict[str, Any]) -> None:
    collected, streamed = (box.post(CHAT, chat_body(**wrong, stream=stream)) for stream in (False, True))
    assert (collected.status_code, streamed.status_code) == (400, 400)
    assert streamed.headers["content-type"] == "application/json"
    assert streamed.content == collected.content


@pytest.mark.parametrize(
    ("path", "make", "prefix", "kind"),
    [
        (CHAT, chat_body, "chatcmpl-", "chat.completion.chunk"),
        (COMPLETIONS, completion_body, "cmpl-", "text_completion"),
    ],
)
def test_b31_chunk_identity_and_headers(box: Caller, path: str, make: Any, prefix: str, kind: str) -> None:
    stream = box.stream(path, make(model="smol", max_tokens=6, stream_options={"include_usage": True}))
    ((id_, object_, _, model),) = {
        (chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in stream.chunks
    }
    assert id_.startswith(prefix)
    assert (object_, model) == (kind, MODEL)
    headers = stream.response.headers
    assert headers["content-type"].startswith("text/event-stream")
    assert "no-cache" in headers["cache-control"]
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers
    assert headers["x-request-id"]
    for name in ("content-type", "cache-control", "x-accel-buffering", "x-request-id", "date"):
        assert len(headers.get_list(name)) == 1


def test_b31_http_1_0_gets_the_whole_stream(box: Caller) -> None:
    body = json.dumps(chat_body(stream=True, max_tokens=6, logit_bias=ENDLESS)).encode()
    head = f"POST {CHAT} HTTP/1.0\r\nContent-Type: application/json\r\nAuthorization: Bearer {KEY}\r\n"
    answer = exchange(box, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body).decode()
    headers, _, events = answer.partition("\r\n\r\n")
    assert " 200 " in headers.splitlines()[0]
    assert "chunked" not in headers
    chunks = read_chunks(events)
    assert 2 <= len(chunks) <= 7
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


STORY = chat_body("Tell a long story", max_tokens=400, logit_bias=ENDLESS)


@contextlib.asynccontextmanager
async def async_client(box: Caller) -> Any:
    headers = {"authorization": f"Bearer {KEY}"}
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=box.url, headers=headers, timeout=60, limits=limits) as client:
        yield client


async def leave_a_stream(client: httpx.AsyncClient, num_chunks: int = 2) -> None:
    async with client.stream("POST", CHAT, json=STORY | {"stream": True}) as response:
        async for line in response.aiter_lines():
            num_chunks -= line.startswith("data:")
            if num_chunks <= 0:
                return


def is_idle(box: Caller) -> bool:
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return not any(box.metric(f"vllm:{name}") for name in names)


def count_finished(box: Caller, reason: str) -> float:
    return box.metric("vllm:request_success_total", f'finished_reason="{reason}"')


async def test_b32_a_client_that_leaves_a_stream(box: Caller) -> None:
    before = count_finished(box, "abort"), count_finished(box, "length")
    async with async_client(box) as client:
        await leave_a_stream(client)
    await asyncio.to_thread(wait_until, lambda: is_idle(box), 5)
    assert (count_finished(box, "abort"), count_finished(box, "length")) == (before[0] + 1, before[1])


async def test_b32_a_client_that_leaves_before_the_answer(box: Caller) -> None:
    before = count_finished(box, "abort")
    async with async_client(box) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.post(CHAT, json=STORY)
    await asyncio.to_thread(wait_until, lambda: is_idle(box), 5)
    assert count_finished(box, "abort") == before + 1


async def test_b32_a_client_that_leaves_the_queue(odd_box: Caller) -> None:
    async with httpx.AsyncClient(base_url=odd_box.url, timeout=60) as client:
        first = asyncio.create_task(client.post(COMPLETIONS, json=completion_body(max_tokens=60, logit_bias=ENDLESS)))
        await asyncio.to_thread(wait_until, lambda: odd_box.metric("vllm:num_requests_running") == 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.post(CHAT, json=STORY)
        await asyncio.to_thread(wait_until, lambda: odd_box.metric("vllm:num_requests_waiting") == 0, 5)
        assert (await first).json()["usage"]["completion_tokens"] == 60
    await asyncio.to_thread(wait_until, lambda: is_idle(odd_box), 5)


def test_b32_a_client_that_leaves_with_half_a_body(box: Caller) -> None:
    address = urlsplit(box.url)
    for _ in range(5):
        with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
            head = (
                f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
            )
            connection.sendall(f'{head}Content-Length: 1000\r\n\r\n{{"messages": ['.encode())
    assert box.chat().status_code == 200
    assert is_idle(box)


async def test_b32_fifty_that_leave_cost_nothing(box: Caller, processes: RunningBox) -> None:
    def memory() -> int:
        names = processes.find("gunicorn") + processes.find("engine", "--index 0")
        return sum(psutil.Process(process.pid).memory_info().rss for process in names)

    async with async_client(box) as client:
        for _ in range(10):
            await leave_a_stream(client)
        before = memory()
        quiet = [box.chat(max_tokens=1).elapsed.total_seconds() for _ in range(5)]
        for _ in range(50):
            await leave_a_stream(client)
    after = box.chat(max_tokens=1).elapsed.total_seconds()
    assert after < 1.5 * statistics.median(quiet) + 0.5
    assert memory() - before < 20 * 2**20
    await asyncio.to_thread(wait_until, lambda: is_idle(box), 5)
