"""A prompt over the token budget of a step, and signs of life while a stream waits."""

from __future__ import annotations

import threading

import httpx
import pytest

from tests.e2e.caller import CHAT, COMPLETIONS, ENDLESS, Caller, chat_body, completion_body, read_chunks, wait_until

PROMPT = "The quick brown fox jumps over the lazy dog. " * 40  # over 6 steps of 64 tokens
OPTIONS = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(("path", "make"), [(CHAT, chat_body), (COMPLETIONS, completion_body)])
def test_no_chunk_is_empty_and_every_token_is_counted(odd_box: Caller, path: str, make: object) -> None:
    assert callable(make)
    logprobs = {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
    fields = {"stream_options": OPTIONS, "max_tokens": 8, "logit_bias": ENDLESS, **logprobs}
    stream = odd_box.stream(path, make(PROMPT, **fields))
    printed = [choice for choice in stream.choices() if choice.get("logprobs")]
    seen = sum(len(choice["logprobs"].get("content") or choice["logprobs"].get("tokens")) for choice in printed)
    assert seen == stream.usage["completion_tokens"] == 8
    assert stream.usage["prompt_tokens"] > 6 * 64
    assert len([choice for choice in stream.choices() if choice not in printed]) <= 1
    assert stream.text() == (
        odd_box.post(path, make(PROMPT, max_tokens=8, logit_bias=ENDLESS)).json()["choices"][0].get("text")
        or odd_box.post(path, make(PROMPT, max_tokens=8, logit_bias=ENDLESS)).json()["choices"][0]["message"]["content"]
    )


def test_comments_while_queued_and_none_while_data_flows(odd_box: Caller) -> None:
    long = completion_body(max_tokens=150, logit_bias=ENDLESS, stream=True)
    answers: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(httpx.post(odd_box.url + COMPLETIONS, json=long, timeout=90).text)
        )
        for _ in range(1)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: odd_box.metric("vllm:num_requests_running") == 1)
    waiting = odd_box.complete(stream=True)
    for thread in threads:
        thread.join(90)
    assert waiting.text.count(": keep-alive\n\n") >= 2
    assert waiting.text.startswith(": keep-alive\n\n")
    assert (
        "".join(chunk["choices"][0]["text"] for chunk in read_chunks(waiting.text))
        == (odd_box.complete().json()["choices"][0]["text"])
    )
    assert ": keep-alive" not in answers[0]
