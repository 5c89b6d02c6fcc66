"""collect-env: it says what is needed, and no secret."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from appliance import __version__, cli
from appliance.settings import Settings, to_json
from appliance.supervisor.run_dir import open_run_dir

SECRET = "sesame-open-now"


def test_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREADBOX_API_KEY", SECRET)
    monkeypatch.setenv("BREADBOX_PORT", "0")
    assert cli.main(["collect-env"]) == 0
    out = capsys.readouterr().out
    assert SECRET not in out
    for words in (__version__, "Machine", "GPUs", "cores", "nginx", "msgspec", "api_key", "BREADBOX_PORT: 0 is out"):
        assert words in out


def test_a_box_and_what_a_killed_one_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run_dir = tmp_path / "box"
    settings = Settings(run_dir=run_dir, api_key=(SECRET,), max_num_seqs=7)
    with open_run_dir(settings):
        (run_dir / "settings.json").write_text(to_json(settings))
        (run_dir / "prometheus" / "engine-0.starts").write_text(f"999999999\n{os.getpid()}\n")
        facts = _collect(capsys, run_dir)
        assert facts["state"] == "a box runs here"
        assert facts["engine-0"] == f"started 2 times, running: {os.getpid()}"
        assert (facts["max_num_seqs"], facts["api_key"]) == ("7", "['********']")
    (run_dir / "lock").touch()
    assert _collect(capsys, run_dir) == {"state": "left by a box that was killed", "sockets": "none"}


def _collect(capsys: pytest.CaptureFixture[str], run_dir: Path) -> dict[str, str]:
    assert cli.main(["collect-env", "--json", "--run-dir", str(run_dir)]) == 0
    out = capsys.readouterr().out
    assert SECRET not in out
    facts: dict[str, str] = json.loads(out)[f"Box in {run_dir}"]
    return facts
