"""/tokenize, /detokenize and /tokenizer_info against Hugging Face's own tokenizer."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.e2e.caller import Caller, check_error

TEXTS = ["Hello world", "", "  two  spaces ", "你好 😀 naïve", "<|im_start|>user\nhi<|im_end|>", "a\n\n\tb", "12345"]
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi there!"},
    {"role": "assistant", "content": "Nice to meet you!"},
    {"role": "user", "content": "Can I ask a question?"},
]
BEGUN = [*MESSAGES, {"role": "assistant", "content": "Sure,"}]


@pytest.fixture(scope="module")
def truth(smollm2: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_texts(box: Caller, truth: Any, text: str, special: bool) -> None:
    answer = box.post("/tokenize", {"prompt": text, "add_special_tokens": special, "return_token_strs": True}).json()
    tokens = truth.encode(text, add_special_tokens=special)
    assert answer["tokens"] == tokens
    assert (answer["count"], answer["max_model_len"]) == (len(tokens), 8192)
    assert answer["token_strs"] == truth.convert_ids_to_tokens(tokens)
    back = box.post("/detokenize", {"tokens": tokens}).json()
    assert back == {"prompt": text}


@pytest.mark.parametrize(("opens", "special"), list(itertools.product([True, False], repeat=2)))
def test_chats(box: Caller, truth: Any, opens: bool, special: bool) -> None:
    fields = {"add_generation_prompt": opens, "add_special_tokens": special}
    text = truth.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=opens)
    answer = box.post("/tokenize", {"messages": MESSAGES, **fields}).json()
    assert answer["tokens"] == truth.encode(text, add_special_tokens=special)
    assert answer["token_strs"] is None


def test_a_continued_message(box: Caller, truth: Any) -> None:
    text = truth.apply_chat_template(BEGUN, tokenize=False, continue_final_message=True)
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    answer = box.post("/tokenize", {"messages": BEGUN, **fields}).json()
    assert answer["tokens"] == truth.encode(text, add_special_tokens=False)
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert box.post("/tokenize", {"messages": BEGUN, **both}).status_code == 400


def test_tools_reach_the_prompt(box: Caller) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    plain, listed = box.count_tokens(MESSAGES), box.count_tokens(MESSAGES, tools=[tool])
    assert box.count_tokens(MESSAGES, tools=[]) == plain
    assert listed > plain + 10


def test_longer_than_the_context(box: Caller) -> None:
    assert box.post("/tokenize", {"prompt": "hello " * 9000}).json()["count"] > 8192


@pytest.mark.parametrize("tokens", [[49152], [-1], [1.5], ["a"], "x", None, [2**64]])
def test_ids_out_of_the_vocabulary(box: Caller, tokens: Any) -> None:
    response = box.post("/detokenize", {"tokens": tokens})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("tokens")


def test_the_model_is_checked(box: Caller) -> None:
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        assert box.post(path, {**body, "model": "smol"}).status_code == 200
        check_error(box.post(path, {**body, "model": "other"}), 404, "model", "model_not_found")


def test_tokenizer_info(box: Caller, odd_box: Caller, truth: Any) -> None:
    info = box.http.get("/tokenizer_info").json()
    assert info["tokenizer_class"]
    assert info["chat_template"] == truth.chat_template
    assert info["eos_token"] == "<|im_end|>"
    assert info == box.http.get("/tokenizer_info").json()
    check_error(odd_box.http.get("/tokenizer_info"), 404)
