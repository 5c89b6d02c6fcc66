"""Continuing and repeating what is already there."""

from __future__ import annotations

from tests.e2e.caller import CHAT, VOCAB_SIZE, Caller, chat_body, text_of

BEGUN = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "The capital of France is"},
]


def continued(**fields: object) -> dict[str, object]:
    return chat_body(messages=BEGUN, continue_final_message=True, add_generation_prompt=False, **fields)


def test_an_echo_begins_with_the_continued_message(box: Caller) -> None:
    echoed = box.both(CHAT, continued(echo=True))["choices"][0]["message"]
    plain = box.both(CHAT, continued())["choices"][0]["message"]
    assert echoed == {**plain, "content": "The capital of France is" + plain["content"]}
    assert "Paris" in plain["content"]


def test_every_choice_is_echoed(box: Caller) -> None:
    answer = box.both(CHAT, continued(echo=True, n=2, temperature=1, seed=1))
    assert all(str(text_of(choice)).startswith("The capital of France is") for choice in answer["choices"])


def test_another_role_is_not_echoed(box: Caller) -> None:
    assert box.chat("hi", echo=True).json()["choices"] == box.chat("hi").json()["choices"]


def test_prompt_logprobs(box: Caller) -> None:
    first, *rest = box.complete("Hello, my name is", echo=True, prompt_logprobs=3).json()["choices"][0][
        "prompt_logprobs"
    ]
    assert first is None
    assert len(rest) == 4
    assert all(len(entry) in (3, 4) for entry in rest)


def test_the_whole_vocabulary(odd_box: Caller) -> None:
    answer = odd_box.chat(logprobs=True, top_logprobs=-1, max_tokens=1).json()
    (token,) = answer["choices"][0]["logprobs"]["content"]
    assert len(token["top_logprobs"]) == VOCAB_SIZE
