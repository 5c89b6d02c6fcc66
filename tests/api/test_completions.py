"""Completions: forms of prompts, order of choices, echo, logprobs, lengths."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import MakeBox
from tests.api.harness import NAME, Box, assert_error, read_events

PARIS = "The capital of France is Paris"


async def test_answer_shape(box: Box) -> None:
    answer = (await box.complete()).json()
    assert answer["object"] == "text_completion"
    assert answer["model"] == NAME
    assert answer["id"].startswith("cmpl-")
    choice = {"index": 0, "text": " red red red red", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    assert answer["choices"] == [choice]
    assert answer["usage"]["completion_tokens"] == 4


async def test_b01_null_means_default(box: Box) -> None:
    answer = await box.complete(
        prompt="test", max_tokens=None, n=None, stop=None, seed=None, logit_bias=None, logprobs=None, stream=None,
        top_p=None, user="u1",
    )  # fmt: skip
    assert answer.json()["usage"]["completion_tokens"] == 16


async def test_b08_prompt_forms_and_order(box: Box) -> None:
    fields: dict[str, Any] = {"prompt": ["1 2 3 4", "A B C D"], "n": 2, "echo": True}
    answer = (await box.complete(**fields)).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert texts == ["1 2 3 4 red red red red"] * 2 + ["A B C D red red red red"] * 2
    chunks = read_events((await box.complete(**fields, stream=True)).text)
    for index, text in enumerate(texts):
        mine = [chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(mine) == text
    single = sum([(await box.complete(prompt=p)).json()["usage"]["prompt_tokens"] for p in fields["prompt"]])
    assert answer["usage"]["prompt_tokens"] == single
    assert answer["usage"]["completion_tokens"] == 16


async def test_b08_token_ids(box: Box) -> None:
    answer = (await box.complete(prompt=[19556], echo=True, max_tokens=2)).json()
    assert answer["choices"][0]["text"] == "Hello red red"
    answer = (await box.complete(prompt=[[19556], [33, 330]], max_tokens=2)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    "prompt",
    [[], "", [[]], ["a", [1]], [1, "a"], [-1], [[-1]], [49152], [[1], [49152]], [2**64], {}, 5, [1.5], [True], None,
     ["a"] * 1025],
)  # fmt: skip
async def test_b08_wrong_prompts(box: Box, prompt: Any) -> None:
    assert_error(await box.complete(prompt=prompt), 400, "prompt")


async def test_prompt_list_at_its_limit(make_box: MakeBox) -> None:
    box = await make_box(max_prompts=8, max_n=8)
    assert len((await box.complete(prompt=["a"] * 8, max_tokens=1)).json()["choices"]) == 8
    assert_error(await box.complete(prompt=["a"] * 9), 400, "prompt")
    assert_error(await box.complete(prompt=["a"] * 8, n=2), 400, "n")


async def test_b10_echo_with_logprobs(box: Box) -> None:
    answer = (await box.complete(prompt=PARIS, max_tokens=1, logprobs=1, echo=True)).json()
    choice, num_prompt = answer["choices"][0], answer["usage"]["prompt_tokens"]
    logprobs = choice["logprobs"]
    assert {len(values) for values in logprobs.values()} == {num_prompt + 1}
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert "".join(logprobs["tokens"]) == choice["text"] == PARIS + " red"
    assert [
        choice["text"][offset:].startswith(token)
        for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True)
    ]
    assert box.engine.submitted[-1].sampling.prompt_logprobs == 1


@pytest.mark.parametrize("n", [1, 3])
async def test_b10_streamed_echo_has_the_same_logprobs(box: Box, n: int) -> None:
    fields = {"prompt": [PARIS, "x"], "n": n, "logprobs": 2, "echo": True}
    whole = (await box.complete(**fields)).json()["choices"]
    chunks = read_events((await box.complete(**fields, stream=True)).text)
    for choice in whole:
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        for name, values in choice["logprobs"].items():
            assert [value for piece in mine for value in piece["logprobs"][name]] == values


async def test_max_tokens_zero_scores_the_prompt(box: Box) -> None:
    answer = (await box.complete(prompt=PARIS, max_tokens=0, logprobs=1, echo=True)).json()
    choice = answer["choices"][0]
    assert choice["text"] == PARIS
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 0
    assert choice["finish_reason"] == "length"
    assert_error(await box.complete(max_tokens=0), 400, "max_tokens")


@pytest.mark.parametrize(("logprobs", "sizes"), [(0, {1}), (1, {1}), (5, {5, 6})])
async def test_numbers_of_logprobs(box: Box, logprobs: int, sizes: set[int]) -> None:
    printed = (await box.complete(logprobs=logprobs)).json()["choices"][0]["logprobs"]
    assert len(printed["token_logprobs"]) == 4
    assert {len(top) for top in printed["top_logprobs"]} <= sizes
    assert printed["text_offset"] == [0, 4, 8, 12]


@pytest.mark.parametrize("logprobs", [21, -1, -2, "5", True])
async def test_b07_wrong_logprobs(box: Box, logprobs: Any) -> None:
    assert_error(await box.complete(logprobs=logprobs), 400, "logprobs")
    assert (await box.complete()).status_code == 200


async def test_logprob_token_ids(box: Box) -> None:
    assert (await box.complete(logprobs=0, logprob_token_ids=[5])).status_code == 200
    assert box.engine.submitted[-1].sampling.logprob_token_ids == [5]
    assert_error(await box.complete(logprob_token_ids=[5]), 400, "logprob_token_ids")
    assert_error(await box.complete(logprobs=0, logprob_token_ids=[1] * 129), 400, "logprob_token_ids")


async def test_return_token_ids(box: Box) -> None:
    choice = (await box.complete(prompt="Hello", return_token_ids=True)).json()["choices"][0]
    assert choice["prompt_token_ids"] == [19556]
    assert choice["token_ids"] == [2382] * 4
    chunks = read_events((await box.complete(prompt="Hello", return_token_ids=True, stream=True)).text)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert ["prompt_token_ids" in choice for choice in choices] == [True, False, False, False]
    assert [choice["token_ids"] for choice in choices] == [[2382]] * 4


async def test_truncation_keeps_the_asked_side(box: Box) -> None:
    for side, expected in (("left", [3, 4]), ("right", [1, 2]), (None, [3, 4])):
        await box.complete(prompt=[1, 2, 3, 4], truncate_prompt_tokens=2, truncation_side=side)
        assert box.engine.submitted[-1].prompt_token_ids == expected
    for wrong in (0, -2, 8193):
        assert_error(await box.complete(truncate_prompt_tokens=wrong), 400, "truncate_prompt_tokens")


async def test_b02_over_long_prompt(box: Box) -> None:
    response = await box.complete(prompt=[19556] * 8192)
    assert "8192 tokens" in assert_error(response, 400, "prompt", "context_length_exceeded")
    assert (await box.complete(prompt=[19556] * 8191, max_tokens=1)).status_code == 200
    assert_error(await box.complete(max_tokens=8193), 400, "max_tokens")


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"suffix": "x"}, "suffix"), ({"n": 2, "best_of": 1}, "best_of"), ({"best_of": 3}, "best_of"),
     ({"use_beam_search": True}, "use_beam_search"), ({"prompt_embeds": "x"}, "prompt_embeds")],
)  # fmt: skip
async def test_b04_unsupported_fields_are_refused(box: Box, fields: dict[str, Any], param: str) -> None:
    assert_error(await box.complete(**fields), 400, param)
    assert (await box.complete(suffix="", best_of=1)).status_code == 200
