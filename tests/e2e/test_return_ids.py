"""Token ids beside the text."""

from __future__ import annotations

import pytest

from tests.e2e.caller import CHAT, COMPLETIONS, Caller, chat_body, completion_body

EMOJI = "😀 "


def test_ids_decode_to_the_text(box: Caller) -> None:
    answer = box.complete(EMOJI * 7, max_tokens=12, return_token_ids=True).json()["choices"][0]
    assert answer["prompt_token_ids"] == box.post("/tokenize", {"prompt": EMOJI * 7}).json()["tokens"]
    text = box.post("/detokenize", {"tokens": answer["token_ids"]}).json()["prompt"]
    assert text.removesuffix("�") == answer["text"]


def test_chat(box: Caller) -> None:
    body = chat_body(return_token_ids=True, max_tokens=6)
    answer = box.post(CHAT, body).json()
    assert answer["prompt_token_ids"] == box.post("/tokenize", {"messages": body["messages"]}).json()["tokens"]
    assert len(answer["choices"][0]["token_ids"]) == answer["usage"]["completion_tokens"]
    stream = box.stream(CHAT, body)
    assert [chunk.get("prompt_token_ids") is not None for chunk in stream.chunks] == [
        number == 0 for number in range(len(stream.chunks))
    ]
    assert stream.chunks[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    ids = [token for choice in stream.choices() for token in choice.get("token_ids") or []]
    assert ids == answer["choices"][0]["token_ids"]


def test_completions(box: Caller) -> None:
    body = completion_body(EMOJI * 7, max_tokens=12, return_token_ids=True, logprobs=0)
    answer = box.post(COMPLETIONS, body | {"return_tokens_as_token_ids": True}).json()["choices"][0]
    assert answer["logprobs"]["tokens"] == [f"token_id:{token}" for token in answer["token_ids"]]
    first, *rest = box.stream(COMPLETIONS, body).choices()
    assert first["prompt_token_ids"] == answer["prompt_token_ids"]
    assert not any("prompt_token_ids" in choice for choice in rest)
    assert [token for choice in (first, *rest) for token in choice["token_ids"]] == answer["token_ids"]


def test_none_unless_asked(box: Caller) -> None:
    assert "token_ids" not in box.complete().json()["choices"][0]
    assert "prompt_token_ids" not in box.chat().json()


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs_as_ids(box: Caller, stream: bool) -> None:
    body = chat_body(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True, return_token_ids=True)
    if stream:
        choices = [choice for choice in box.stream(CHAT, body).choices() if choice.get("logprobs")]
    else:
        choices = box.post(CHAT, body).json()["choices"]
    shown = [token["token"] for choice in choices for token in choice["logprobs"]["content"]]
    assert shown == [f"token_id:{token}" for choice in choices for token in choice["token_ids"]]


def test_the_boxs_setting(odd_box: Caller) -> None:
    assert odd_box.complete(logprobs=0).json()["choices"][0]["logprobs"]["tokens"][0].startswith("token_id:")
    plain = odd_box.complete(logprobs=0, return_tokens_as_token_ids=False).json()["choices"][0]["logprobs"]
    assert not plain["tokens"][0].startswith("token_id:")
