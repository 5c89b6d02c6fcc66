"""Bodies that are within the limit of bytes and would still keep the API busy: refused, or read beside the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from appliance.api.request_body import MAX_CONTAINERS
from appliance.api.sampling_fields import MAX_STOP_CHARS
from appliance.api.token_fields import MAX_BAD_WORD_CHARS
from appliance.text.chat_template import ChatTemplate
from tests.api.conftest import MakeBox
from tests.api.harness import Box, assert_error

JSON = {"content-type": "application/json"}
USER = b'{"role": "user", "content": "hi"}'
TOO_MANY: dict[str, Callable[[int], bytes]] = {
    "messages": lambda count: b'{"messages": [%b]}' % b",".join([USER] * count),
    "objects": lambda count: b'{"messages": [%b], "metadata": [%b]}' % (USER, b",".join([b"{}"] * count)),
    "after a quote": lambda count: rb'{"messages": [%b], "user": "\\", "x": [%b]}' % (USER, b",".join([b"[]"] * count)),
}


@pytest.mark.parametrize("kind", TOO_MANY)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/responses"])
async def test_too_many_lists_and_objects(make_box: MakeBox, path: str, kind: str) -> None:
    box = await make_box(max_body_bytes=10_000_000)
    body = TOO_MANY[kind](MAX_CONTAINERS)
    message = assert_error(await box.client.post(path, content=body, headers=JSON), 400)
    assert f"more than {MAX_CONTAINERS} lists and objects" in message


async def test_brackets_in_texts_do_not_count(make_box: MakeBox) -> None:
    box = await make_box(max_body_bytes=10_000_000)
    text = '[{\\"' * (MAX_CONTAINERS + 1)
    response = await box.client.post("/tokenize", content=b'{"prompt": "%b"}' % text.encode(), headers=JSON)
    assert response.status_code == 200
    assert response.json()["count"] > MAX_CONTAINERS


async def test_long_texts_come_with_their_spelling(box: Box) -> None:
    response = await box.client.post("/tokenize", json={"prompt": "hi " * 10_000, "return_token_strs": True})
    answer = response.json()
    assert answer["count"] == len(answer["token_strs"]) > 10_000


async def test_large_tools_are_rendered(box: Box) -> None:
    parameters = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(2_000)}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    messages = [{"role": "user", "content": "hi"}]
    response = await box.client.post("/tokenize", json={"messages": messages, "tools": [tool]})
    assert response.status_code == 200


async def test_large_tool_calls_are_rendered_beside_the_loop(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    render, threads = ChatTemplate.render, []

    def note_thread(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread())
        return render(*args, **kwargs)

    monkeypatch.setattr(ChatTemplate, "render", note_thread)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": "%s"}' % ("y" * 20_000)}}
    user = {"role": "user", "content": "hi"}
    for messages in ([user], [user, {"role": "assistant", "content": None, "tool_calls": [call]}]):
        assert (await box.client.post("/tokenize", json={"messages": messages})).status_code == 200
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_stop_strings_have_a_limit_of_characters(box: Box) -> None:
    message = assert_error(await box.chat(stop=["x" * MAX_STOP_CHARS, "y"]), 400, "stop")
    assert str(MAX_STOP_CHARS) in message
    assert (await box.chat(stop=["x" * MAX_STOP_CHARS])).status_code == 200


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids"])
async def test_no_more_ids_than_there_are_tokens(box: Box, field: str) -> None:
    message = assert_error(await box.chat(**{field: [5] * 49_153}), 400, field)
    assert "49152" in message
    assert (await box.chat(**{field: list(range(49_152))})).status_code == 200


async def test_bad_words_have_a_limit_of_characters(box: Box) -> None:
    message = assert_error(await box.chat(bad_words=["x" * (MAX_BAD_WORD_CHARS + 1)]), 400, "bad_words")
    assert str(MAX_BAD_WORD_CHARS) in message
