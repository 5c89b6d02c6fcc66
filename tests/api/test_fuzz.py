"""Random bodies: whatever is sent, the answer is a 2xx or a 4xx in the envelope, and the next request is served."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from appliance.api.completions.schemas import CompletionRequest
from appliance.api.conversation.schemas import ChatRequest
from tests.api.harness import NAME, Box

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-3, 300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8), st.sampled_from(["<|im_end|>", "\x00", "😀", "text", "auto", "user", "1", "{% x %}"]),
)  # fmt: skip
NAMES = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields})
KEYS = st.one_of(
    st.text(max_size=5), st.sampled_from(["type", "role", "content", "text", "function", "name", "tool_calls", *NAMES])
)
VALUES = st.recursive(
    SCALARS, lambda v: st.one_of(st.lists(v, max_size=4), st.dictionaries(KEYS, v, max_size=4)), max_leaves=12
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool", "developer"]), "content": VALUES},
        optional={"tool_calls": VALUES, "name": VALUES, "tool_call_id": VALUES, "reasoning": VALUES},
    ),
    max_size=3,
)
FIELDS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5)
TEMPLATE = st.dictionaries(
    st.sampled_from(["range", "raise_exception", "bos_token", "strftime_now", "loop", "x"]), VALUES
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FIELDS, st.one_of(MESSAGES, VALUES), VALUES, TEMPLATE, st.integers(0, 3))
def test_b19_no_body_is_a_5xx(
    running: tuple[Box, asyncio.AbstractEventLoop],
    fields: dict[str, Any],
    messages: Any,
    prompt: Any,
    kwargs: Any,
    kind: int,
) -> None:
    box, loop = running
    base: dict[str, Any] = {"model": NAME, "max_tokens": 3}
    if kind % 2:
        body = base | {"prompt": prompt} | fields
    else:
        body = base | {"messages": messages, "chat_template_kwargs": kwargs} | fields
    path = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/tokenize")[kind]
    loop.run_until_complete(check(box, path, body))


async def check(box: Box, path: str, body: dict[str, Any]) -> None:
    response = await box.client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404), (body, response.text)
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in response.text
    assert not box.engine.running
