"""Random bodies for responses and messages: a 2xx or a 4xx in the protocol's envelope, whatever is sent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from appliance.api.messages.schemas import MessagesRequest
from appliance.api.responses.schemas import ResponsesRequest
from tests.api.harness import NAME, Box
from tests.api.messages.reading import fold_message
from tests.api.responses.reading import read_response_events
from tests.api.test_fuzz import SCALARS

TYPES = [
    "message", "function_call", "function_call_output", "reasoning", "input_text", "output_text", "text", "tool_use",
    "tool_result", "thinking", "function", "custom", "tool", "any", "auto", "allowed_tools", "json_schema", "enabled",
]  # fmt: skip
PARTS = [
    "role", "content", "text", "call_id", "name", "arguments", "output", "summary", "id", "input", "tool_use_id",
    "thinking", "input_schema", "parameters", "schema", "format", "effort", "budget_tokens", "mode", "tools",
]  # fmt: skip
KEYS = st.sampled_from([*PARTS, *ResponsesRequest.model_fields, *MessagesRequest.model_fields])
VALUES = st.recursive(
    SCALARS,
    lambda v: st.one_of(
        st.lists(v, max_size=3),
        st.dictionaries(KEYS, v, max_size=4),
        st.builds(lambda t, more: {"type": t} | more, st.sampled_from(TYPES), st.dictionaries(KEYS, v, max_size=4)),
    ),
    max_leaves=12,
)
TEXT = st.one_of(st.text(max_size=8), st.sampled_from(["<|im_end|>", "<think>", "{}", '{"x": 1}']))
SAID = st.builds(lambda text: [{"type": "text", "text": text}], TEXT)


def message(role: str, *blocks: dict[str, Any]) -> Any:
    """A message with these blocks, or with any text."""
    content = st.one_of(TEXT, SAID, st.lists(st.sampled_from(blocks), max_size=3) if blocks else SAID)
    return st.builds(lambda content: {"role": role, "content": content}, content)


ITEM = st.one_of(
    message("user"), message("assistant"), message("developer"),
    st.builds(lambda text: {"type": "function_call", "call_id": "c", "name": "f", "arguments": text}, TEXT),
    st.builds(lambda text: {"type": "function_call_output", "call_id": "c", "output": text}, TEXT),
    st.builds(lambda text: {"type": "reasoning", "summary": [{"text": text}]}, TEXT),
)  # fmt: skip
MESSAGE = st.one_of(
    message("user", {"type": "tool_result", "tool_use_id": "t", "content": "x"}, {"type": "text", "text": "a"}),
    message("assistant", {"type": "tool_use", "id": "t", "name": "f", "input": {}},
            {"type": "thinking", "thinking": "Hm."}),
    message("system"),
)  # fmt: skip


def conversation(turn: Any) -> Any:
    """Mostly well formed, now and then with a field that is not, or no conversation at all."""
    spoilt = st.builds(lambda turn, more: turn | more, turn, st.dictionaries(KEYS, VALUES, max_size=2))
    return st.one_of(st.lists(turn, min_size=1, max_size=4), st.lists(spoilt, max_size=2), VALUES)


def request(model: Any, turns: str, turn: Any, tool: dict[str, Any]) -> Any:
    """Fields of `model`, in half of the cases none but those that it needs."""
    fields = st.dictionaries(st.sampled_from(sorted(model.model_fields)), VALUES, max_size=3)
    tools = st.one_of(st.just([]), st.just([tool]), VALUES)
    return st.builds(
        lambda fields, tools, turns_said: {"tools": tools} | fields | {turns: turns_said},
        st.one_of(st.just({}), fields), tools, conversation(turn),
    )  # fmt: skip


RESPONSE_BODY = request(ResponsesRequest, "input", ITEM, {"type": "function", "name": "f"})
MESSAGE_BODY = request(MessagesRequest, "messages", MESSAGE, {"name": "f"})
BODIES = st.one_of(
    st.tuples(st.just("/v1/responses"), RESPONSE_BODY),
    st.tuples(st.sampled_from(["/v1/messages", "/v1/messages/count_tokens"]), MESSAGE_BODY),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BODIES, st.booleans())
def test_b19_no_body_is_a_5xx(
    running: tuple[Box, asyncio.AbstractEventLoop], sent: tuple[str, dict[str, Any]], is_streamed: bool
) -> None:
    box, loop = running
    path, body = sent
    short = {"model": NAME, "max_output_tokens": 3, "max_tokens": 3, "stream": is_streamed}
    loop.run_until_complete(check(box, path, body | short))


async def check(box: Box, path: str, body: dict[str, Any]) -> None:
    response = await box.client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404), (body, response.text)
    if response.status_code != 200:
        assert response.json()["error"]["message"]
        assert response.json().get("type") == (None if path == "/v1/responses" else "error")
    elif response.headers["content-type"].startswith("text/event-stream"):
        if path == "/v1/responses":
            assert read_response_events(response.text)[-1]["type"] != "response.failed"
        else:
            assert fold_message(response.text)["stop_reason"]
    assert not box.engine.running
