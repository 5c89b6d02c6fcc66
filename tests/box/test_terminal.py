"""The commands for people against a real box."""

from __future__ import annotations

import json

import pytest

from appliance import cli
from tests.box.running_box import RunningBox
from tests.observability.load import MODEL, complete, in_background
from tests.unit.terminal.terminals import running_in_terminal


def test_chat_complete_and_top(box: RunningBox, capsys: pytest.CaptureFixture[str]) -> None:
    sampling = ["--url", box.url, "--temperature", "0", "--max-tokens", "8"]
    assert cli.main(["complete", "The capital of France is", *sampling]) == 0
    assert "Paris" in capsys.readouterr().out
    with running_in_terminal("chat", *sampling) as chat:
        chat.expect("> ")
        chat.type("Say hello\n")
        chat.expect("tokens/s", within_s=60)
        chat.expect("> ")
        chat.type("/quit\n")
        assert chat.wait() == 0
    load = in_background(lambda: complete(box, max_tokens=100))
    with load, running_in_terminal("top", "--url", box.url, "--interval", "0.2") as top:
        top.expect(MODEL)
        top.expect("1 running", within_s=60)
        top.type("q")
        assert top.wait() == 0
    assert cli.main(["top", "--json", "--url", box.url, "--interval", "0.2"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["is_ready"]
    assert all(value > 0 for value in [*model["ttft_s"], *model["itl_s"]])
