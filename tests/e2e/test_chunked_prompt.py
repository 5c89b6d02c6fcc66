"""A prompt over the token budget of a step, and signs of life while a stream waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.caller import (
    CHAT,
    COMPLETIONS,
    ENDLESS,
    Caller,
    chat_body,
    completion_body,
    read_chunks,
    text_of,
    wait_until,
)

PROMPT = "The quick brown fox jumps over the lazy dog. " * 40  # over 6 steps of 64 tokens
OPTIONS = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(("path", "make"), [(CHAT, chat_body), (COMPLETIONS, completion_body)])
def test_no_chunk_is_empty_and_every_token_is_counted(odd_box: Caller, path: str, make: Any) -> None:
    logprobs = {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
    body = make(PROMPT, max_tokens=8, logit_bias=ENDLESS)
    stream = odd_box.stream(path, body | logprobs | {"stream_options": OPTIONS})
    printed = [choice for choice in stream.choices() if choice.get("logprobs")]
    seen = sum(len(choice["logprobs"].get("content") or choice["logprobs"].get("tokens")) for choice in printed)
    assert seen == stream.usage["completion_tokens"] == 8
    assert stream.usage["prompt_tokens"] > 6 * 64
    assert len([choice for choice in stream.choices() if choice not in printed]) <= 1
    assert stream.text() == text_of(odd_box.post(path, body).json()["choices"][0])


def test_comments_while_queued_and_none_while_data_flows(odd_box: Caller) -> None:
    counted = {"stream": True, "stream_options": {"include_usage": True}}
    long = completion_body(max_tokens=600, logit_bias=ENDLESS, **counted)
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(httpx.post, odd_box.url + COMPLETIONS, json=long, timeout=90)
        wait_until(lambda: odd_box.metric("vllm:num_requests_running") == 1)
        waiting = odd_box.complete(stream=True)
    assert waiting.text.startswith(": keep-alive\n\n")
    assert waiting.text.count(": keep-alive\n\n") >= 2
    text = "".join(chunk["choices"][0]["text"] for chunk in read_chunks(waiting.text))
    assert text == text_of(odd_box.complete().json()["choices"][0])
    flowing = ahead.result().text
    assert read_chunks(flowing)[-1]["usage"]["completion_tokens"] == 600
    assert flowing.count(": keep-alive") <= 3  # each a pause of a busy machine
