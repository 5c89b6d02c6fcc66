"""Completions, as upstream's own black-box tests look at them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.caller import COMPLETIONS, MODEL, RED, Caller, completion_body

PROMPT = "Hello, my name is"
PROMPT_IDS = [19556, 28, 957, 1462, 314]


def test_single_completion(box: Caller) -> None:
    answer = box.complete(PROMPT, max_tokens=5, cache_salt="single").json()
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", MODEL)
    (choice,) = answer["choices"]
    assert choice["text"]
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    counts = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    assert answer["usage"] == counts | {"prompt_tokens_details": {"cached_tokens": 0}}


def test_token_ids_are_a_prompt(box: Caller) -> None:
    as_text, as_ids = box.complete(PROMPT, max_tokens=5).json(), box.complete(PROMPT_IDS, max_tokens=5).json()
    assert len(as_ids["choices"]) == 1
    assert as_ids["choices"][0]["text"] == as_text["choices"][0]["text"]
    assert as_ids["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize(("side", "kept"), [("left", PROMPT_IDS[-2:]), ("right", PROMPT_IDS[:2]), (None, [1462, 314])])
def test_truncation_side(box: Caller, side: str | None, kept: list[int]) -> None:
    fields = {"truncate_prompt_tokens": 2, "truncation_side": side, "return_token_ids": True}
    answer = box.complete(PROMPT, **fields).json()
    assert answer["choices"][0]["prompt_token_ids"] == kept
    assert answer["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(("logprobs", "sizes"), [(0, {1}), (1, {1, 2}), (5, {5, 6}), (20, {20, 21})])
def test_some_logprobs(box: Caller, logprobs: int, sizes: set[int]) -> None:
    printed = box.complete(PROMPT, max_tokens=5, logprobs=logprobs, temperature=1, seed=1).json()["choices"][0][
        "logprobs"
    ]
    assert {len(values) for values in printed.values()} == {5}
    assert all(value <= 0 for value in printed["token_logprobs"])
    assert {len(top) for top in printed["top_logprobs"]} <= sizes
    for token, logprob, top in zip(printed["tokens"], printed["token_logprobs"], printed["top_logprobs"], strict=True):
        assert top[token] == logprob
        assert list(top.values()) == sorted(top.values(), reverse=True)


def test_too_many_logprobs(box: Caller) -> None:
    assert "20" in box.refused(COMPLETIONS, completion_body(logprobs=21), "logprobs")
    assert box.complete(logprobs=5).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_logprob_token_ids(box: Caller, stream: bool) -> None:
    body = completion_body(PROMPT, logprobs=0, logprob_token_ids=[RED, 7], max_tokens=3)
    if stream:
        tops = [top for choice in box.stream(COMPLETIONS, body).choices() for top in choice["logprobs"]["top_logprobs"]]
    else:
        tops = box.post(COMPLETIONS, body).json()["choices"][0]["logprobs"]["top_logprobs"]
    assert len(tops) == 3
    assert all(" red" in top for top in tops)


def test_prompt_logprobs(box: Caller) -> None:
    answer = box.complete(PROMPT_IDS, prompt_logprobs=2).json()
    first, *rest = answer["choices"][0]["prompt_logprobs"]
    assert first is None
    assert len(rest) == 4
    for token_id, entry in zip(PROMPT_IDS[1:], rest, strict=True):
        assert entry[str(token_id)]["logprob"] <= 0
        assert len(entry) in (2, 3)
        assert {1, 2} <= {token["rank"] for token in entry.values()}
    for wrong in (-1, -2, 21):
        assert box.complete(PROMPT, prompt_logprobs=wrong).json()["error"]["param"] == "prompt_logprobs"
    assert box.complete(PROMPT, prompt_logprobs=0, stream=True).json()["error"]["param"] == "prompt_logprobs"


def test_streaming(box: Caller) -> None:
    body = completion_body(PROMPT, max_tokens=10)
    stream = box.stream(COMPLETIONS, body)
    assert stream.text() == box.post(COMPLETIONS, body).json()["choices"][0]["text"]
    assert stream.finish() == "length"
    assert stream.chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert stream.chunks[-1]["choices"][0]["text"]


PARALLEL = {"n": 3, "seed": 42, "temperature": 1.0, "logprobs": 0, "max_tokens": 5}


def test_parallel_choices(box: Caller) -> None:
    answer = box.complete(PROMPT, **PARALLEL).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(set(texts)) == 3
    assert all(len(choice["logprobs"]["tokens"]) == 5 for choice in answer["choices"])
    stream = box.stream(COMPLETIONS, completion_body(PROMPT, **PARALLEL))
    assert [stream.text(index) for index in range(3)] == texts
    assert all(len(stream.choices(index)) <= 5 for index in range(3))
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 15


def test_parallel_choices_of_two_prompts(box: Caller) -> None:
    answer = box.both(COMPLETIONS, completion_body([PROMPT, "One two three"], **PARALLEL | {"n": 2}))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    alone = box.complete("One two three", **PARALLEL | {"n": 2}).json()
    assert [choice["text"] for choice in answer["choices"][2:]] == [choice["text"] for choice in alone["choices"]]


@pytest.mark.parametrize(
    ("options", "final", "every"),
    [
        (None, False, False),
        ({}, False, False),
        ({"include_usage": False, "continuous_usage_stats": True}, False, False),
        ({"include_usage": True}, True, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
    ],
)
def test_stream_options(box: Caller, options: Any, final: bool, every: bool) -> None:
    stream = box.stream(COMPLETIONS, completion_body(PROMPT, stream_options=options, max_tokens=5))
    texts = [chunk for chunk in stream.chunks if chunk["choices"]]
    assert len(stream.chunks) - len(texts) == final
    assert all(("usage" in chunk) == every for chunk in texts)
    if final:
        assert stream.usage["completion_tokens"] == 5
        assert stream.usage["total_tokens"] == 10
    if every:
        counts = [chunk["usage"]["completion_tokens"] for chunk in texts]
        assert counts == sorted(set(counts))
        assert counts[-1] == 5


@pytest.mark.parametrize(
    "options", [{"include_usage": True}, {"include_usage": None}, {"continuous_usage_stats": True}, {}]
)
def test_stream_options_without_a_stream(box: Caller, options: Any) -> None:
    for stream in (False, None):
        response = box.complete(stream_options=options, stream=stream)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "stream_options"


@pytest.mark.parametrize("as_ids", [False, True])
def test_a_batch_of_prompts(box: Caller, as_ids: bool) -> None:
    prompts: Any = [PROMPT_IDS, [RED, RED]] if as_ids else [PROMPT, " red red"]
    answer = box.both(COMPLETIONS, completion_body(prompts))
    alone = [box.complete(prompt).json()["choices"][0]["text"] for prompt in prompts]
    assert [choice["text"] for choice in answer["choices"]] == alone
    assert answer["usage"]["prompt_tokens"] == 7


def test_echo_with_logprobs(box: Caller) -> None:
    choice = box.complete(PROMPT, echo=True, logprobs=1, max_tokens=2).json()["choices"][0]
    assert choice["text"].startswith(PROMPT)
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert len(choice["logprobs"]["tokens"]) == 7
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    for offset, token in zip(choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"], strict=True):
        assert choice["text"][offset:].startswith(token)


@pytest.mark.parametrize(
    "constraint",
    [
        {"json": {"type": "stringy"}},
        {"json": {"properties": {"a": {"type": 5}}}},
        {"regex": "(["},
        {"regex": "a{5,2}"},
        {"grammar": "start: nothing"},
        {"grammar": "root ::= missing"},
        {"choice": []},
    ],
)
def test_invalid_constraints(box: Caller, constraint: dict[str, Any]) -> None:
    response = box.complete(PROMPT, structured_outputs=constraint)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith("structured_outputs")
    message = box.refused(
        COMPLETIONS, completion_body(structured_outputs=constraint), response.json()["error"]["param"]
    )
    assert message == response.json()["error"]["message"]


@pytest.mark.parametrize("name", ["max_tokens", "temperature", "n", "stop", "logprobs", "seed", "user", "best_of"])
def test_a_null_is_the_default(box: Caller, name: str) -> None:
    assert box.complete(PROMPT, **{name: None}).status_code == 200
