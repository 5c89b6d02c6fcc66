"""Chats that fail: each kind of fault has its status and names its field, streamed or not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.caller import CHAT, Caller, chat_body, check_error

USER = {"role": "user", "content": "hi"}
DEEP: dict[str, Any] = {"type": "object"}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"a": DEEP}}


def schema(value: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [None]}, "messages[0]"),
        ({"messages": [USER, "hi"]}, "messages[1]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "x"}]}]}, "messages[0].tool_calls[0]"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (schema(None), "response_format.json_schema.schema"),
        (schema(DEEP), "response_format.json_schema.schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "structural_tag"}}, "response_format"),
        ({"response_format": {"type": "structural_tag", "format": {"type": "odd"}}}, "response_format"),
        ({"logprobs": "yes"}, "logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": "5"}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 10**6}, "max_completion_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"chat_template": "x"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "a/b"}, "cache_salt"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"stop_token_ids": [49152]}, "stop_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"priority": 2**63}, "priority"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 9000}, "truncate_prompt_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"stream_options": {"include_usage": "yes"}, "stream": True}, "stream_options.include_usage"),
        ({"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
        ({"media_io_kwargs": {"image": {}}}, "media_io_kwargs"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"repetition_detection": {"max_pattern_size": 5}}, "repetition_detection"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(box: Caller, fields: dict[str, Any], param: str) -> None:
    box.refused(CHAT, chat_body(**fields), param)


def test_an_unknown_model(box: Caller) -> None:
    assert "smol" in box.refused(CHAT, chat_body(model="other"), "model", 404, "model_not_found")


def test_a_body_that_is_no_object(box: Caller) -> None:
    for body in ([], "hi", 1, None, True):
        box.refused(CHAT, body, None)


def test_deep_nesting(box: Caller) -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}],"metadata":' + b'{"a":' * 5000 + b"1" + b"}" * 5001
    response = box.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    check_error(response, 400)
