"""Chat completions, as upstream's own black-box tests look at them."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest

from tests.e2e.caller import CHAT, ENDLESS, MODEL, Caller, chat_body

EASY = "What is the capital of France?"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def check_person(text: str) -> None:
    person = json.loads(text)
    assert person.keys() == {"name", "age"}
    assert len(person["name"]) <= 12
    assert person["age"] in range(100)


def test_single_chat(box: Caller) -> None:
    answer = box.chat(EASY, max_tokens=10).json()
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["model"]) == ("chat.completion", MODEL)
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert "Paris" in choice["message"]["content"]
    assert choice["finish_reason"] in ("stop", "length")
    assert "tool_calls" not in choice["message"]
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_two_turns(box: Caller) -> None:
    first = box.chat(EASY).json()["choices"][0]["message"]
    messages = [{"role": "user", "content": EASY}, first, {"role": "user", "content": "And of Italy?"}]
    second = box.chat(messages=messages, max_tokens=12).json()["choices"][0]["message"]["content"]
    assert "Rome" in second


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_logprobs(box: Caller, top: int) -> None:
    content = box.chat(max_tokens=10, logprobs=True, top_logprobs=top, logit_bias=ENDLESS).json()["choices"][0][
        "logprobs"
    ]["content"]
    assert len(content) == 10
    for token in content:
        assert token["logprob"] <= 0
        assert bytes(token["bytes"]).decode("utf-8", "replace") == token["token"]
        assert len(token["top_logprobs"]) == top
        assert [other["logprob"] for other in token["top_logprobs"]] == sorted(
            (other["logprob"] for other in token["top_logprobs"]), reverse=True
        )


def test_no_logprobs(box: Caller) -> None:
    assert box.chat(max_tokens=2).json()["choices"][0]["logprobs"] is None
    assert box.chat(max_tokens=2, logprobs=False, top_logprobs=None).json()["choices"][0]["logprobs"] is None
    assert box.chat(max_tokens=2, logprobs=True, top_logprobs=None).status_code == 200


@pytest.mark.parametrize("top", [21, 30, -1, -2])
def test_too_many_logprobs(box: Caller, top: int) -> None:
    box.refused(CHAT, chat_body(logprobs=True, top_logprobs=top), "top_logprobs")
    assert box.chat().status_code == 200


def test_prompt_logprobs(box: Caller) -> None:
    answer = box.chat(prompt_logprobs=1).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert answer["prompt_logprobs"][0] is None
    assert all(len(entry) in (1, 2) for entry in answer["prompt_logprobs"][1:])
    streamed = box.chat(prompt_logprobs=1, stream=True)
    assert streamed.status_code == 400
    assert streamed.json()["error"]["param"] == "prompt_logprobs"


def test_streaming(box: Caller) -> None:
    body = chat_body(EASY, max_tokens=10, logit_bias=ENDLESS)
    answer = box.both(CHAT, body)
    stream = box.stream(CHAT, body)
    roles = [choice["delta"]["role"] for choice in stream.choices() if "role" in choice["delta"]]
    assert roles == ["assistant"]
    assert stream.choices()[0]["delta"] == {"role": "assistant", "content": ""}
    last = stream.chunks[-1]["choices"][0]
    assert last["finish_reason"] == answer["choices"][0]["finish_reason"] == "length"
    assert last["delta"]["content"]
    assert 2 <= len(stream.chunks) <= 11  # a reader that is slow for a moment gets several tokens at once


def test_continuous_usage_rises_strictly(box: Caller) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = box.stream(CHAT, chat_body(EASY, max_tokens=10, logit_bias=ENDLESS, stream_options=options))
    *chunks, final = stream.chunks
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 0
    assert counts[-1] == 10
    assert all(before < after for before, after in pairwise(counts))
    assert final["choices"] == []
    assert final["usage"]["completion_tokens"] == 10


@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": None}, {}])
def test_stream_options_without_a_stream(box: Caller, options: Any) -> None:
    response = box.chat(stream_options=options)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"


@pytest.mark.parametrize("spelling", ["structured_outputs", "guided"])
def test_constrained_choice(box: Caller, spelling: str) -> None:
    words = ["Python", "Java", "JavaScript"]
    fields = {"guided_choice": words} if spelling == "guided" else {"structured_outputs": {"choice": words}}
    answer = box.both(CHAT, chat_body("The best language?", max_tokens=20, **fields))
    assert answer["choices"][0]["message"]["content"] in words
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_constrained_regex(box: Caller) -> None:
    pattern = r"((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.){3}(25[0-5]|(2[0-4]|1\d|[1-9]|)\d)"
    answer = box.chat("An address", max_tokens=40, structured_outputs={"regex": pattern}).json()
    assert re.fullmatch(pattern, answer["choices"][0]["message"]["content"])


def test_constrained_json(box: Caller) -> None:
    answer = box.both(CHAT, chat_body("A person", max_tokens=80, structured_outputs={"json": PERSON}))
    check_person(answer["choices"][0]["message"]["content"])


def test_constrained_grammar(box: Caller) -> None:
    grammar = 'root ::= "SELECT " column " FROM t"\ncolumn ::= "a" | "b"'
    answer = box.chat("SQL", max_tokens=20, structured_outputs={"grammar": grammar}).json()
    assert answer["choices"][0]["message"]["content"] in ("SELECT a FROM t", "SELECT b FROM t")


def test_constrained_choice_with_logprobs(box: Caller) -> None:
    fields = {"structured_outputs": {"choice": ["yes", "no"]}, "logprobs": True, "top_logprobs": 5}
    content = box.chat("Yes?", **fields).json()["choices"][0]["logprobs"]["content"]
    assert content
    assert all(-9999 <= token["logprob"] <= 0 for token in content)
    assert all(other["logprob"] >= -9999 for token in content for other in token["top_logprobs"])


@pytest.mark.parametrize(
    "constraint",
    [
        {"choice": "yes"}, {"choice": [1]}, {"json": 5}, {"json": "{"}, {"regex": 5}, {"regex": ""}, {"regex": "a\0"},
        {"grammar": " "}, {"json_object": False}, {}, {"choice": ["a"], "regex": "a"}, {"structural_tag": "x"}, "json",
    ],
)  # fmt: skip
def test_wrong_constraints(box: Caller, constraint: Any) -> None:
    response = box.chat(structured_outputs=constraint)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith("structured_outputs")


def test_response_format_text(box: Caller) -> None:
    assert box.chat(response_format={"type": "text"}).json()["choices"] == box.chat().json()["choices"]


def test_response_format_json_object(box: Caller) -> None:
    answer = box.both(CHAT, chat_body("A JSON object", max_tokens=100, response_format={"type": "json_object"}))
    if answer["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(answer["choices"][0]["message"]["content"]), dict)


@pytest.mark.parametrize("strict", [True, False, None])
def test_response_format_json_schema(box: Caller, strict: bool | None) -> None:
    schema = {"name": "person", "schema": PERSON, "strict": strict}
    fields: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": schema}}
    answer = box.chat("A person", max_tokens=80, **fields).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    check_person(answer["choices"][0]["message"]["content"])


@pytest.mark.parametrize("extra", [{"extra_field": {"a": [1]}}, {"store": True}, {"vllm_xargs": {"x": 1}}])
def test_unknown_fields_are_ignored(box: Caller, extra: dict[str, Any]) -> None:
    assert box.chat(EASY, **extra).json()["choices"] == box.chat(EASY).json()["choices"]


def test_seeds_out_of_range(box: Caller) -> None:
    for seed in (2**63, -(2**63) - 1, 10**40, 1.5, "1"):
        box.refused(CHAT, chat_body(seed=seed), "seed")
    for seed in (2**63 - 1, -(2**63), 0, -1):
        assert box.chat(seed=seed, temperature=1).status_code == 200


@pytest.mark.exact
def test_n_is_reproducible_by_its_seed(box: Caller) -> None:
    body = chat_body("Say a word", n=3, seed=11, temperature=1.2, max_tokens=6)
    texts = [[choice["message"]["content"] for choice in box.both(CHAT, body)["choices"]] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3


def test_n_at_its_limit(odd_box: Caller) -> None:
    assert len(odd_box.chat(n=5, temperature=1, max_tokens=1).json()["choices"]) == 5
    for n in (0, 6, 10**9, -1):
        assert "5" in odd_box.refused(CHAT, chat_body(n=n), "n")


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max", None])
def test_effort_words(box: Caller, effort: str | None) -> None:
    assert box.chat(reasoning_effort=effort, max_tokens=1).status_code == 200


def test_another_effort_word(box: Caller) -> None:
    assert "medium" in box.refused(CHAT, chat_body(reasoning_effort="huge"), "reasoning_effort")


@pytest.mark.parametrize("model", [None, "smol", MODEL])
def test_names_of_the_model(box: Caller, model: str | None) -> None:
    response = box.chat(model=model, max_tokens=1)
    assert response.json()["model"] == MODEL


def test_the_older_and_the_newer_limit(box: Caller) -> None:
    fields = {"logit_bias": ENDLESS, "max_completion_tokens": 3, "max_tokens": 6}
    assert box.chat(**fields).json()["usage"]["completion_tokens"] == 3
    assert box.chat(**fields | {"max_completion_tokens": None}).json()["usage"]["completion_tokens"] == 6


def test_min_tokens_masks_the_end(box: Caller) -> None:
    fields = {"logit_bias": {"2": 100}, "max_tokens": 6}
    assert box.chat(**fields).json()["usage"]["completion_tokens"] == 1
    answer = box.chat(**fields, min_tokens=4).json()
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_stop_tokens_and_ignored_ends(box: Caller) -> None:
    answer = box.chat(logit_bias={"2382": 100}, stop_token_ids=[2382]).json()["choices"][0]
    assert (answer["finish_reason"], answer["stop_reason"], answer["message"]["content"]) == ("stop", 2382, "")
    ended = box.chat(logit_bias={"2": 100}).json()["choices"][0]
    assert (ended["finish_reason"], ended["stop_reason"]) == ("stop", None)
    answer = box.chat(logit_bias={"2": 100}, ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["choices"][0]["message"]["content"] == ""
    shown = box.chat(logit_bias={"2": 100}, ignore_eos=True, skip_special_tokens=False).json()
    assert shown["choices"][0]["message"]["content"] == "<|im_end|>" * 4


def test_included_stop_strings(box: Caller) -> None:
    fields = {"logit_bias": {"2382": 100}, "stop": "d red"}
    for include, text in ((False, " re"), (True, " red red")):
        choice = box.both(CHAT, chat_body(**fields, include_stop_str_in_output=include))["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", "d red")


def test_allowed_and_bad_words(box: Caller) -> None:
    assert box.chat(allowed_token_ids=[2382]).json()["choices"][0]["message"]["content"] == " red" * 4
    first = box.complete().json()["choices"][0]["text"]
    assert "Paris" in first
    assert "Paris" not in box.complete(bad_words=["Paris"]).json()["choices"][0]["text"]


def test_penalties(box: Caller) -> None:
    for penalty in ({"presence_penalty": 2}, {"frequency_penalty": 2}, {"repetition_penalty": 5}):
        text = box.chat(logit_bias={"2382": 2.1}, **penalty).json()["choices"][0]["message"]["content"]
        assert box.chat(**penalty).status_code == 200
        assert isinstance(text, str)
