"""POST /invocations answers as the route that the body's shape names."""

from __future__ import annotations

from typing import Any

from tests.api.conftest import MakeBox
from tests.api.harness import NAME, Box, assert_error, read_events

CHAT = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}
COMPLETION = {"model": NAME, "prompt": "Colour:", "max_tokens": 4, "temperature": 0}


def without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in ("id", "created")}


async def test_messages_are_a_chat_and_a_prompt_a_completion(box: Box) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)):
        invoked = await box.client.post("/invocations", json=body)
        own = await box.client.post(path, json=body)
        assert invoked.status_code == 200
        assert without_ids(invoked.json()) == without_ids(own.json())
    streamed = await box.client.post("/invocations", json=CHAT | {"stream": True})
    assert read_events(streamed.text)[-1]["choices"][0]["finish_reason"] == "length"


async def test_what_fits_nothing_is_refused(make_box: MakeBox) -> None:
    box = await make_box(api_key=["secret"])
    headers = {"authorization": "Bearer secret"}
    message = assert_error(await box.client.post("/invocations", json={"model": NAME}, headers=headers), 400)
    assert "messages" in message
    assert "prompt" in message
    bad = await box.client.post("/invocations", json=CHAT | {"temperature": 9}, headers=headers)
    assert_error(bad, 400, "temperature")
    assert_error(await box.client.post("/invocations", json=CHAT), 401, code="invalid_api_key")
