"""/v1/messages through the real box."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.e2e.caller import KEY, MODEL, Caller
from tests.e2e.test_responses import read_typed

MESSAGES = "/v1/messages"
USER = {"role": "user", "content": "What is the capital of France?"}
TOOL = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
        "required": ["city"],
    },
}
FORCED = {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 60}


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [USER], "max_tokens": 12, "temperature": 0, **fields}


def test_a_message(box: Caller) -> None:
    answer = box.post(MESSAGES, ask(system="Be brief.")).json()
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", MODEL)
    assert answer["id"].startswith("msg_")
    assert answer["content"][0]["type"] == "text"
    assert answer["stop_reason"] in ("end_turn", "max_tokens")


def test_the_order_of_events(box: Caller) -> None:
    answer, events = box.post(MESSAGES, ask()).json(), read_typed(box, MESSAGES, ask())
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    deltas = kinds.count("content_block_delta")
    assert kinds == [
        "message_start", "content_block_start", *["content_block_delta"] * deltas, "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    texts = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(texts) == answer["content"][0]["text"]
    (end,) = [event for event in events if event["type"] == "message_delta"]
    assert end["delta"]["stop_reason"] == answer["stop_reason"]
    assert end["delta"]["stop_sequence"] is None
    assert end["usage"]["output_tokens"] == answer["usage"]["output_tokens"]
    assert events[0]["message"]["usage"]["output_tokens"] in (0, 1)


def test_usage_and_the_count_agree(box: Caller) -> None:
    usage = box.post(MESSAGES, ask()).json()["usage"]
    counted = box.post(f"{MESSAGES}/count_tokens", {"model": MODEL, "messages": [USER]}).json()["input_tokens"]
    assert usage["input_tokens"] + usage.get("cache_read_input_tokens", 0) == counted


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({"stop_sequences": ["Paris"], "max_tokens": 20}, "stop_sequence", "Paris"),
        ({"logit_bias": {"2": 100}}, "end_turn", None),
        ({"max_tokens": 2}, "max_tokens", None),
    ],
)
def test_reasons_to_stop(box: Caller, fields: dict[str, Any], reason: str, sequence: str | None) -> None:
    answer = box.post(MESSAGES, ask(**fields)).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)


def test_a_forced_call(box: Caller) -> None:
    answer = box.post(MESSAGES, ask(**FORCED)).json()
    (block,) = [block for block in answer["content"] if block["type"] == "tool_use"]
    assert (block["name"], answer["stop_reason"]) == ("get_weather", "tool_use")
    assert block["input"]["city"] in ("Paris", "Oslo")
    events = read_typed(box, MESSAGES, ask(**FORCED))
    pieces = [event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == block["input"]


def test_errors_are_in_their_own_envelope(box: Caller) -> None:
    cases = [
        (ask(model="other"), 404, "not_found_error"),
        (ask(messages=[]), 400, "invalid_request_error"),
        (ask(max_tokens=0), 400, "invalid_request_error"),
    ]
    for body, status, kind in cases:
        response = box.post(MESSAGES, body)
        assert response.status_code == status
        assert response.json()["type"] == "error"
        assert response.json()["error"]["type"] == kind
    refused = httpx.post(box.url + MESSAGES, json=ask(), headers={"x-api-key": "wrong"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    keyed = httpx.post(box.url + MESSAGES, json=ask(), headers={"x-api-key": KEY}, timeout=60)
    assert keyed.status_code == 200
