"""Sampling fields of both protocols: ranges, types, and what the engine gets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.harness import Box, assert_error

WRONG: list[tuple[str, Any]] = [
    ("n", 0), ("n", -1), ("n", 129), ("n", 10**9), ("n", "2"), ("n", 1.5), ("n", True),
    ("temperature", -0.1), ("temperature", 999999.0), ("temperature", "0.5"), ("temperature", "hot"),
    ("temperature", []),
    ("top_p", 0), ("top_p", -1.0), ("top_p", 1.1), ("top_k", -2), ("top_k", 2.5), ("min_p", -0.1), ("min_p", 1.5),
    ("presence_penalty", 9), ("frequency_penalty", -2.1),
    ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", 1e300),
    ("seed", 18446744073709551616), ("seed", -(2**63) - 1), ("seed", "7"), ("seed", 1.5),
    ("stop", ""), ("stop", ["a", ""]), ("stop", ["a"] * 5), ("stop", 5), ("stop", [5]), ("stop", {"a": 1}),
    ("stop_token_ids", [49152]), ("stop_token_ids", [-1]), ("stop_token_ids", "x"), ("stop_token_ids", 7),
    ("allowed_token_ids", []), ("allowed_token_ids", [49152]), ("allowed_token_ids", [2**70]),
    ("bad_words", [""]), ("bad_words", ["a"] * 129), ("bad_words", ["x" * 5000]), ("bad_words", "x"),
    ("min_tokens", -1), ("min_tokens", 5), ("max_tokens", "4"), ("max_tokens", 1.5),
    ("stream", "yes"), ("stream", 1), ("echo", "no"), ("ignore_eos", "x"), ("priority", 2**63),
    ("model", 5), ("truncation_side", "up"),
    ("logit_bias", {"49152": 5}), ("logit_bias", {"abc": 5}), ("logit_bias", {"2382": 101}), ("logit_bias", {"-1": 5}),
    ("logit_bias", {"2382": "x"}), ("logit_bias", {"2382": None}), ("logit_bias", {"1e3": 1}), ("logit_bias", {"²": 1}),
    ("logit_bias", []), ("logit_bias", {"2382": True}), ("use_beam_search", True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
async def test_b04_b05_b16_b20_wrong_values_are_named(box: Box, name: str, value: Any) -> None:
    for post in (box.chat, box.complete):
        response = await post(**{name: value})
        assert_error(response, 400, response.json()["error"]["param"])
        assert response.json()["error"]["param"].split(".")[0].split("[")[0] == name
        assert name in response.json()["error"]["message"]
        assert response.json()["error"]["type"] == "invalid_request_error"
    assert not box.engine.submitted


async def test_limits_are_in_the_message(box: Box) -> None:
    assert "128" in assert_error(await box.chat(n=129), 400, "n")
    assert "2" in assert_error(await box.chat(temperature=3), 400, "temperature")
    assert "4" in assert_error(await box.chat(stop=["a"] * 5), 400, "stop")
    message = assert_error(await box.chat(logit_bias={"abc": 1, "49152": 1, "1": "x"}), 400, "logit_bias")
    assert all(key in message for key in ("'abc'", "'49152'", "'1'", "49151"))


async def test_b05_logit_bias(box: Box) -> None:
    assert (await box.complete(logit_bias={"4461": 100})).json()["choices"][0]["text"] == " blue" * 4
    assert (await box.complete(logit_bias={})).json()["choices"][0]["text"] == " red" * 4
    assert box.engine.submitted[-1].sampling.logit_bias is None


async def test_everything_reaches_the_engine(box: Box) -> None:
    response = await box.complete(
        max_tokens=8, min_tokens=2, temperature=0.5, top_k=7, top_p=0.8, min_p=0.1, repetition_penalty=1.2,
        presence_penalty=0.3, frequency_penalty=-0.4, seed=-1, stop_token_ids=[5, 6], ignore_eos=True,
        allowed_token_ids=[2382, 4461], bad_words=["red"], logit_bias={"2382": -1}, logprobs=2,
    )  # fmt: skip
    assert response.status_code == 200, response.text
    sampling = box.engine.submitted[-1].sampling
    assert (sampling.max_tokens, sampling.min_tokens, sampling.seed) == (8, 2, -1)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 7, 0.8, 0.1)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.2, 0.3, -0.4)
    assert (sampling.stop_token_ids, sampling.ignore_eos) == ([5, 6], True)
    assert (sampling.allowed_token_ids, sampling.logit_bias) == ([2382, 4461], {2382: -1.0})
    assert sampling.logprobs == 2
    assert [2382] in (sampling.bad_words_token_ids or [])


async def test_whole_floats_are_integers(box: Box) -> None:
    assert (await box.chat(max_tokens=3.0, n=1.0)).json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63)])
async def test_seeds_at_the_edge_with_n(box: Box, seed: int) -> None:
    assert (await box.chat(seed=seed, n=2, temperature=1)).status_code == 200


async def test_b04_n_at_its_limit(box: Box) -> None:
    answer = (await box.chat(n=128, max_tokens=1)).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(128))


async def test_stop_token_id_is_reported(box: Box) -> None:
    choice = (await box.complete(stop_token_ids=[2382])).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 2382)
