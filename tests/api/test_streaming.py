"""Order and content of chunks, errors before and after the first byte, keep-alive, clients that leave."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from appliance.api.streaming import TextChunk, sse
from engine.messages import GenerateRequest, RequestOutput
from tests.api.conftest import MakeBox
from tests.api.harness import NAME, AsgiCall, Box, assert_error, read_events
from tests.api.scripted_engine import EOS, ScriptedEngine
from tests.fakes import Answer, FakeEngine

CHAT = "/v1/chat/completions"
BODY = {
    "model": NAME,
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 6,
    "temperature": 0,
    "stream": True,
}


def say_emoji(request: GenerateRequest, position: int) -> int:
    """😀 over and over: three tokens each, none of them a character."""
    return (10813, 242, 218)[position % 3]


def say_hello_then_end(request: GenerateRequest, position: int) -> int:
    return 19556 if position == 0 else EOS


async def test_b26_role_first_and_finish_once_with_the_last_text(box: Box) -> None:
    chunks = read_events((await box.chat(stream=True)).text)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"] for choice in choices[1:]] == [{"content": " red"}] * 4
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, None, "length"]


@pytest.mark.parametrize("text", ["red", "", '"content":""', "\\\n\x00\u2028", "你好 😀", "</script>"])
@pytest.mark.parametrize("id", ["chatcmpl-1", '"content":""', '","content":"'])
def test_a_chunk_of_which_only_the_text_changes_is_what_the_whole_would_be(text: str, id: str) -> None:
    def chunk(content: str) -> dict[str, Any]:
        return {"id": id, "choices": [{"delta": {"content": content}, "name": id}], "last": id}

    assert TextChunk(chunk(""), "content").print(text) == sse(chunk(text))


@pytest.mark.parametrize(
    ("route", "ending", "none"),
    [("chat", '"finish_reason":"length","stop_reason":null', '"finish_reason":null'),
     ("complete", '"finish_reason":"length"', '"finish_reason":null')],
)  # fmt: skip
async def test_the_chunk_with_the_finish_is_like_those_of_text(box: Box, route: str, ending: str, none: str) -> None:
    events = (await getattr(box, route)(stream=True, max_tokens=5)).text.split("\n\n")[route == "chat" : -2]
    assert len(events) == 5
    assert set(events[:-1]) == {events[-1].replace(ending, none)}
    assert ending in events[-1]


@pytest.mark.parametrize("route", ["chat", "complete"])
@pytest.mark.parametrize("stream", [True, False])
async def test_every_byte_of_an_answer_is_counted(box: Box, route: str, stream: bool) -> None:
    response = await getattr(box, route)(stream=stream)
    handler = "/v1/chat/completions" if route == "chat" else "/v1/completions"
    lines = (await box.client.get("/metrics")).text.splitlines()
    (line,) = [line for line in lines if line.startswith(f'http_response_size_bytes_sum{{handler="{handler}"')]
    assert float(line.split()[-1]) == len(response.content)


async def test_b31_chunk_identity_and_headers(box: Box) -> None:
    response = await box.chat(stream=True, stream_options={"include_usage": True})
    chunks = read_events(response.text)
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[0]["id"].startswith("chatcmpl-")
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-length" not in response.headers
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("route", ["chat", "complete"])
@pytest.mark.parametrize(
    ("options", "has_usage"),
    [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True),
     ({"include_usage": None}, False), ({"continuous_usage_stats": True}, False)],
)  # fmt: skip
async def test_b28_usage_only_when_asked(box: Box, route: str, options: object, has_usage: bool) -> None:
    chunks = read_events((await getattr(box, route)(stream=True, stream_options=options)).text)
    plain = (await getattr(box, route)()).json()["usage"]
    with_usage = [chunk for chunk in chunks if "usage" in chunk]
    assert [chunk["choices"] for chunk in with_usage] == ([[]] if has_usage else [])
    if has_usage:
        assert chunks[-1]["usage"] == plain


async def test_b28_usage_options_are_checked(box: Box) -> None:
    response = await box.chat(stream=True, stream_options={"include_usage": "yes"})
    assert_error(response, 400, "stream_options.include_usage")
    for options in ({"include_usage": True}, {"include_usage": None}):
        assert_error(await box.chat(stream_options=options), 400, "stream_options")


@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_continuous_usage_rises_strictly(box: Box, route: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = read_events((await getattr(box, route)(stream=True, stream_options=options, max_tokens=6)).text)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["choices"]]
    rising = [count for count in counts if count]
    assert rising == sorted(set(rising))
    assert rising[-1] == 6
    assert chunks[-1]["usage"]["completion_tokens"] == 6


async def test_force_include_usage(make_box: MakeBox) -> None:
    box = await make_box(enable_force_include_usage=True)
    chunks = read_events((await box.chat(stream=True)).text)
    assert all("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize("route", ["chat", "complete"])
@pytest.mark.parametrize(
    "fields",
    [{"stop": ["red red red"], "max_tokens": 8}, {"stop": "red blue", "max_tokens": 8}, {"logit_bias": {"198": 100}},
     {"logit_bias": {"216": 100}}, {"n": 3}, {"stop_token_ids": [2382]}, {"echo": True}],
)  # fmt: skip
async def test_b23_b25_stream_equals_collected(box: Box, route: str, fields: dict[str, object]) -> None:
    whole = (await getattr(box, route)(**fields)).json()
    chunks = read_events((await getattr(box, route)(**fields, stream=True)).text)
    for choice in whole["choices"]:
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        text = "".join(c["text"] if route == "complete" else c["delta"].get("content", "") for c in mine)
        assert text == (choice["text"] if route == "complete" else choice["message"]["content"])
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [choice["finish_reason"]]
        assert mine[-1]["stop_reason"] == choice["stop_reason"]


async def test_b23_stop_strings(box: Box) -> None:
    choice = (await box.complete(stop=["red red red"], max_tokens=8)).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (" ", "stop", "red red red")
    choice = (await box.complete(stop=["red blue"], max_tokens=8)).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (" red" * 8, "length")
    answer = await box.complete(stop=["red red red"], max_tokens=8, include_stop_str_in_output=True)
    assert answer.json()["choices"][0]["text"] == " red red red"


async def test_b22_characters_are_never_split(make_box: MakeBox) -> None:
    box = await make_box(ScriptedEngine(rule=say_emoji))
    chunks = read_events((await box.complete(max_tokens=9, stream=True)).text)
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert texts == ["😀", "😀", "😀"]


async def test_a_finish_without_text_has_its_own_chunk(make_box: MakeBox) -> None:
    box = await make_box(ScriptedEngine(rule=say_hello_then_end))
    chunks = read_events((await box.chat(stream=True)).text)
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:]] == [{"content": "Hello"}, {}]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_every_token_is_accounted_for_with_logprobs(make_box: MakeBox) -> None:
    box = await make_box(ScriptedEngine(rule=say_emoji))
    chunks = read_events((await box.chat(max_tokens=6, stream=True, logprobs=True, return_token_ids=True)).text)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [t for c in choices for t in c.get("token_ids", [])] == [10813, 242, 218] * 2
    content = [entry for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "😀😀"
    assert "prompt_token_ids" in chunks[0]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_error_after_the_first_byte_is_an_event_and_done(make_box: MakeBox, path: str) -> None:
    box = await make_box(ScriptedEngine(fails_after=2))
    chunks = read_events((await box.client.post(path, json=BODY | {"prompt": "x"})).text)
    assert set(chunks[-1]) == {"error"}
    assert chunks[-1]["error"]["type"] == "server_error"
    assert "/home/" not in chunks[-1]["error"]["message"]
    assert not any(choice["finish_reason"] for chunk in chunks[:-1] for choice in chunk["choices"])


@pytest.mark.parametrize("stream", [False, True])
async def test_error_before_the_first_byte_has_a_status(make_box: MakeBox, stream: bool) -> None:
    refusal = RequestOutput(
        request_id="x", finish_reason="error", error="stop_token_ids is odd", error_param="stop_token_ids"
    )
    box = await make_box(ScriptedEngine(refuses=refusal))
    assert "odd" in assert_error(await box.chat(stream=stream), 400, "stop_token_ids")
    box = await make_box(ScriptedEngine(fails_after=0))
    assert_error(await box.chat(stream=stream), 500)
    box = await make_box(ScriptedEngine(is_ready=False))
    response = await box.chat(stream=stream)
    assert_error(response, 503)
    assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    "wrong",
    [{"messages": [{"role": "banana", "content": "x"}]}, {"temperature": 9}, {"model": "no-such"},
     {"messages": [{"role": "user", "content": "hello " * 8400}]}, {"response_format": {"type": "yaml"}}],
)  # fmt: skip
async def test_b29_bad_requests_fail_alike_streamed_or_not(box: Box, wrong: dict[str, object]) -> None:
    plain, streamed = await box.chat(**wrong), await box.chat(**wrong, stream=True)
    assert 400 <= plain.status_code < 500
    assert (plain.status_code, plain.json()) == (streamed.status_code, streamed.json())
    assert streamed.headers["content-type"] == "application/json"


async def test_keep_alive_comments_while_queued(make_box: MakeBox) -> None:
    gate = asyncio.Semaphore(0)
    box = await make_box(ScriptedEngine(gate=gate), sse_keep_alive_interval=0.05)
    async with AsgiCall(box.app, CHAT, BODY | {"max_tokens": 2}) as call:
        assert (await call.next())["status"] == 200
        assert await call.next_body() == b": keep-alive\n\n"
        assert await call.next_body() == b": keep-alive\n\n"
        gate.release()
        assert b'"role":"assistant"' in await call.next_body()
        assert await call.next_body() == b": keep-alive\n\n"
        gate.release()
        rest = await call.next_body()
        while not rest.endswith(b"data: [DONE]\n\n"):
            rest += await call.next_body()
        assert b'"finish_reason":"length"' in rest


@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_stream_interval_makes_larger_chunks(make_box: MakeBox, route: str) -> None:
    box = await make_box(stream_interval=2)
    fields: dict[str, Any] = {"stream": True, "max_tokens": 8, "logprobs": 1 if route == "complete" else True}
    for asked, expected in ((None, [1, 2, 2, 2, 1]), (1, [1, 2, 2, 2, 1]), (4, [1, 4, 3])):
        response = await getattr(box, route)(**fields, stream_interval=asked)
        choices = [chunk["choices"][0] for chunk in read_events(response.text)][route == "chat" :]
        texts = [choice["text"] if route == "complete" else choice["delta"]["content"] for choice in choices]
        assert texts == [" red" * count for count in expected]
        entries = [choice["logprobs"]["tokens" if route == "complete" else "content"] for choice in choices]
        assert [len(entry) for entry in entries] == expected
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(expected) - 1) + ["length"]


async def test_stream_interval_loses_nothing_on_an_error(make_box: MakeBox) -> None:
    box = await make_box(ScriptedEngine(fails_after=3), stream_interval=10)
    text = (await box.chat(stream=True)).text
    assert text.count(" red") == 3
    assert '"error"' in text


async def test_no_comment_while_data_flows(box: Box) -> None:
    assert ": keep-alive" not in (await box.chat(stream=True, max_tokens=50)).text


async def test_b32_a_client_that_leaves_while_it_is_queued(make_box: MakeBox) -> None:
    engine = ScriptedEngine(gate=asyncio.Semaphore(0))
    box = await make_box(engine)
    async with AsgiCall(box.app, CHAT, BODY) as call:
        await engine.arrivals.acquire()
        call.leave()
        await asyncio.wait_for(call.task, 5)
    assert not engine.running
    assert len(engine.aborted) == 1


async def test_a_lost_engine_is_only_a_pause(make_box: MakeBox) -> None:
    lives = iter([2, None])
    answer: dict[str, Any] = {"token_ids": [19556, 2382, 4461, 2382], "finish_reason": "length"}
    box = await make_box(FakeEngine(lambda request: Answer(**answer, lost_after=next(lives))))
    chunks = read_events((await box.chat(stream=True)).text)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Hello red blue red"
    assert [len(request.resumed_token_ids) for request in box.engine.requests] == [0, 2]


async def test_a_long_prompt_does_not_stop_other_streams(make_box: MakeBox) -> None:
    box = await make_box(max_model_len=10**9)
    loop, gaps = asyncio.get_running_loop(), [0.0]

    async def tick() -> None:
        last = loop.time()
        while True:
            await asyncio.sleep(0.001)
            gaps.append(loop.time() - last)
            last = loop.time()

    ticker = asyncio.create_task(tick())
    started = loop.time()
    messages = [{"role": "user", "content": "你好世界" * 100_000}]
    assert (await box.chat(messages=messages, max_tokens=1)).status_code == 200
    duration_s = loop.time() - started
    ticker.cancel()
    # Tokenizing takes most of the time; only short parts of it may keep the loop waiting.
    assert max(gaps) < duration_s / 2


@pytest.mark.parametrize("stream", [True, False])
async def test_b32_a_client_that_leaves_aborts_its_requests(make_box: MakeBox, stream: bool) -> None:
    gate = asyncio.Semaphore(2)
    engine = ScriptedEngine(gate=gate)
    box = await make_box(engine)
    async with AsgiCall(box.app, CHAT, BODY | {"stream": stream, "n": 2}) as call:
        if stream:
            await call.next()
            await call.next()
        await engine.arrivals.acquire()
        await engine.arrivals.acquire()
        call.leave()
        await asyncio.wait_for(call.task, 5)
    assert not engine.running
    assert len(engine.aborted) == 2
    text = (await box.client.get("/metrics")).text
    assert 'breadbox:client_disconnects_total{handler="/v1/chat/completions"} 1.0' in text
    assert (await box.client.get("/load")).json() == {"server_load": 0}


@pytest.mark.parametrize("stream", [True, False])
async def test_b47_what_is_open_at_the_deadline_ends_with_an_error(
    make_box: MakeBox, tmp_path: Path, stream: bool
) -> None:
    engine = ScriptedEngine(gate=asyncio.Semaphore(1))
    box = await make_box(engine, run_dir=tmp_path)
    async with AsgiCall(box.app, CHAT, BODY | {"stream": stream}) as call:
        await engine.arrivals.acquire()
        (tmp_path / "draining").write_text(f"{time.monotonic() + 0.1}\n")
        await asyncio.wait_for(call.task, 5)
        messages = iter_queue(call.messages)
    assert messages[0]["status"] == (200 if stream else 503)
    body = b"".join(message.get("body", b"") for message in messages)
    assert b"shutting down" in body
    assert body.endswith(b"data: [DONE]\n\n") is stream
    assert not engine.running


async def test_load_counts_until_the_stream_ends(make_box: MakeBox) -> None:
    gate = asyncio.Semaphore(1)
    box = await make_box(ScriptedEngine(gate=gate))
    async with AsgiCall(box.app, CHAT, BODY | {"max_tokens": 2}) as call:
        await call.next()
        assert (await box.client.get("/load")).json() == {"server_load": 1}
        gate.release()
        await asyncio.wait_for(call.task, 5)
    assert (await box.client.get("/load")).json() == {"server_load": 0}


async def test_a_slow_reader_gets_several_chunks_in_one_write(make_box: MakeBox) -> None:
    gate = asyncio.Semaphore(0)
    box = await make_box(ScriptedEngine(gate=gate))
    async with AsgiCall(box.app, CHAT, BODY | {"max_tokens": 100}) as call:
        for _ in range(100):
            gate.release()
        await asyncio.wait_for(call.task, 5)
        bodies = [message["body"] for message in iter_queue(call.messages) if message.get("body")]
    assert b"".join(bodies).count(b'"content":" red"') == 100


@pytest.mark.parametrize(
    ("path", "fields"),
    [(CHAT, {"messages": BODY["messages"], "max_tokens": 40}),
     ("/v1/completions", {"prompt": "x", "max_tokens": 40}),
     ("/v1/responses", {"input": "hi", "max_output_tokens": 40}),
     ("/v1/messages", {"messages": BODY["messages"], "max_tokens": 40})],
)  # fmt: skip
async def test_what_is_written_without_a_task_is_the_same(
    make_box: MakeBox, path: str, fields: dict[str, object]
) -> None:
    body = {"model": NAME, "temperature": 0, "stream": True} | fields
    bodies = []
    for reads in (True, False):
        box = await make_box(ScriptedEngine())
        async with AsgiCall(box.app, path, body) as call:
            call.reads = reads
            await asyncio.wait_for(call.task, 5)
        messages = iter_queue(call.messages)
        assert bool(call.num_written) is reads
        assert messages[0]["type"] == "http.response.start"
        assert messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        bodies.append(b"".join(message.get("body", b"") for message in messages))
        lines = (await box.client.get("/metrics")).text.splitlines()
        (line,) = [line for line in lines if line.startswith(f'http_response_size_bytes_sum{{handler="{path}"')]
        assert float(line.split()[-1]) == len(bodies[-1])
    written, sent = [re.sub(rb"[0-9a-f]{32}|[0-9]{10}", b"", body) for body in bodies]
    assert written == sent
    assert written.count(b" red") >= 40


async def test_a_client_that_reads_again_gets_everything_in_order(make_box: MakeBox) -> None:
    gate = asyncio.Semaphore(0)
    box = await make_box(ScriptedEngine(rule=lambda request, position: 16 + position, gate=gate))
    async with AsgiCall(box.app, CHAT, BODY | {"max_tokens": 60}) as call:
        for number in range(60):
            call.reads = number // 7 % 2 == 0
            gate.release()
            for _ in range(number % 5):
                await asyncio.sleep(0)
        await asyncio.wait_for(call.task, 5)
    assert call.num_written
    text = b"".join(message.get("body", b"") for message in iter_queue(call.messages)).decode()
    pieces = [event["choices"][0]["delta"].get("content", "") for event in read_events(text)]
    assert "".join(pieces) == box.model.tokenizer.decode([16 + position for position in range(60)])


async def test_a_reader_that_stands_still_stops_the_pump(make_box: MakeBox) -> None:
    made: list[int] = []

    def count(request: GenerateRequest, position: int) -> int:
        made.append(position)
        return 2382

    box = await make_box(ScriptedEngine(rule=count))
    call = AsgiCall(box.app, CHAT, BODY | {"max_tokens": 5000})
    call.messages = asyncio.Queue(maxsize=3)
    async with call:
        await call.next()
        for _ in range(2000):
            await asyncio.sleep(0)
        assert len(made) < 1000
        text = b""
        while not text.endswith(b"[DONE]\n\n"):
            text += await call.next_body()
        assert text.count(b'"content":" red"') == 5000


def iter_queue(queue: asyncio.Queue[dict[str, Any]]) -> list[dict[str, Any]]:
    return [queue.get_nowait() for _ in range(queue.qsize())]
