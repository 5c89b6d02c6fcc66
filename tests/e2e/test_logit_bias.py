"""``logit_bias``: it works, and every bad entry is named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.caller import CHAT, COMPLETIONS, Caller, chat_body, completion_body

ROUTES = [(CHAT, chat_body), (COMPLETIONS, completion_body)]


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_bias_decides(box: Caller, path: str, body: Any) -> None:
    for value in (100, 100.0, 99.5):
        choice = box.post(path, body(logit_bias={"2382": value})).json()["choices"][0]
        assert choice.get("text", choice.get("message", {}).get("content")) == " red" * 4
    assert box.post(path, body(logit_bias={str(token): 0.1 for token in range(300)})).status_code == 200


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize(
    "bias",
    [{"49152": 1}, {"49153": 1}, {"-1": 1}, {"red": 1}, {"1.5": 1}, {"": 1}, {" 1": 1}, {"1": "high"}, {"1": None},
     {"1": True}, {"1": 100.1}, {"1": -101}, {"1": [1]}, {"9" * 40: 1}],
)  # fmt: skip
def test_a_bad_entry_is_named(box: Caller, path: str, body: Any, bias: dict[str, Any]) -> None:
    ((key, _),) = bias.items()
    assert key[:20] in box.refused(path, body(logit_bias=bias), "logit_bias")


def test_all_bad_entries_are_named(box: Caller) -> None:
    message = box.refused(CHAT, chat_body(logit_bias={"49152": 1, "x": 1, "5": 1, "6": "y"}), "logit_bias")
    assert all(repr(key) in message for key in ("49152", "x", "6"))
    assert "'5'" not in message


@pytest.mark.parametrize("bias", ["x", [], 5, True])
def test_it_must_be_an_object(box: Caller, bias: Any) -> None:
    box.refused(CHAT, chat_body(logit_bias=bias), "logit_bias")
