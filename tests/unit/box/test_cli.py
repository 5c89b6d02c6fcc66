"""The command line: what it prints and how it exits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance import bake, cli, engine_process
from appliance.errors import BakeError
from engine.errors import ConfigError


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        status = cli.main(words)
    except SystemExit as exit:  # --help
        status = int(exit.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_without_words_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys)
    assert status == 2
    assert run(capsys, "--help")[:2] == (0, out)
    for name in ("serve", "bake", "config", "check", "version"):
        assert f"  {name} " in out
    assert "engine  " not in out


@pytest.mark.parametrize("name", [name for name, command in cli.COMMANDS.items() if not command.is_internal])
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    status, out, _ = run(capsys, name, "--help")
    assert status == 0
    assert f"usage: breadbox {name}" in out
    assert cli.COMMANDS[name].summary.split()[0] in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["brew"], "there is no command 'brew'"),
        (["serve", "--prot", "1"], "unrecognized arguments: --prot"),
        (["serve", "--port"], "expected 1 argument"),
        (["bake", "x"], "needs a SOURCE and --out DIR"),
        (["bake", "x", "--verify", "y"], "takes no SOURCE"),
        (["bake", "x", "--out", "y", "--dtype", "int4"], "invalid choice: 'int4'"),
        (["config", "--port", "0"], "--port: 0 is out of range"),
    ],
)
def test_usage_errors_are_one_line(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.startswith("breadbox: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "version")[1].startswith("breadbox ")
    assert run(capsys, "--version") == run(capsys, "version")


def test_config_tells_where_values_come_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BREADBOX_SEED", "7")
    status, out, _ = run(capsys, "config", "model-a", "--api-key", "secret-1", "--api-key", "secret-2", "model-b")
    assert status == 0
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith("  ")}
    assert lines["seed"] == ["7", "BREADBOX_SEED"]
    assert lines["model"] == ["model-a", "model-b", "--model"]
    assert lines["port"] == ["8000", "default"]
    assert "secret" not in out


def test_config_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    values = json.loads(run(capsys, "config", "--json", "--api-key", "secret")[1])
    assert values["api_key"] == {"value": ["********"], "source": "flag"}
    assert values["port"] == {"value": 8000, "source": "default"}


def test_config_as_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "config", "--markdown")[1]
    assert "| `--port` | 8000 | port the proxy listens on |" in out
    assert "\n**Engine**\n" in out


def test_check_reports_everything(capsys: pytest.CaptureFixture[str], fake_model: Path) -> None:
    status, _, err = run(
        capsys, "check", str(fake_model), "--port", "x", "--chat-template", "none.jinja", "--seed", "y"
    )
    assert status == 2
    assert [line.split(": ")[2] for line in err.splitlines()] == ["--port", "--seed", "--chat-template"]


def test_check_of_a_sound_box(capsys: pytest.CaptureFixture[str], fake_model: Path) -> None:
    assert run(capsys, "check", str(fake_model), "--port", "59999")[:2] == (0, "everything is in order\n")


def test_bake_shows_progress(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fake_bake(source: str, out: Path, **options: object) -> Path:
        progress = options["progress"]
        assert callable(progress)
        for phase, fraction in (("read", 0.0), ("read", 0.5), ("weights", 0.25)):
            progress(phase, fraction)
        out.mkdir()
        (out / "manifest.json").write_text('{"weights": {"notes": ["one matrix is written as float32: it is small"]}}')
        return out

    monkeypatch.setattr(bake, "bake", fake_bake)
    assert cli.main(["bake", "src", "--out", str(tmp_path / "m")]) == 0
    assert capsysbinary.readouterr().out.decode().splitlines() == [
        "reading (0 %)",
        "writing weights (25 %)",
        "one matrix is written as float32: it is small",
        f"baked src into {tmp_path / 'm'}",
    ]


def test_a_bake_that_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Path:
        raise BakeError("the source is damaged")

    monkeypatch.setattr(bake, "bake", fail)
    assert run(capsys, "bake", "src", "--out", "m") == (1, "", "breadbox: error: the source is damaged\n")


def test_bugs_are_told_in_one_line_unless_debugging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Path:
        raise RuntimeError("boom")

    monkeypatch.setattr(bake, "bake", fail)
    status, _, err = run(capsys, "bake", "src", "--out", "m")
    assert status == 1
    assert err.count("\n") == 1
    assert "Traceback" in run(capsys, "bake", "src", "--out", "m", "--log-level", "debug")[2]


def test_an_engine_that_cannot_be_configured_exits_with_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path, fake_model: Path
) -> None:
    from appliance.settings import Settings, to_json

    def fail(settings: Settings, index: int) -> int:
        raise ConfigError("no such dtype")

    (folder / "settings.json").write_text(to_json(Settings(model=(fake_model,), run_dir=folder)))
    monkeypatch.setenv("BREADBOX_SETTINGS_FILE", str(folder / "settings.json"))
    monkeypatch.setattr(engine_process, "run_engine", fail)
    monkeypatch.setattr("appliance.logs.configure_logging", lambda *_: None)
    assert run(capsys, "engine", "--index", "0") == (2, "", "breadbox: error: no such dtype\n")
