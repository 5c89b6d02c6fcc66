"""The target appears whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.bake import bake, verify
from appliance.bake.staging import staged
from appliance.baked_model import BakedModel
from appliance.errors import BakeError
from tests.unit.bake import tiny_sources as tiny


@pytest.fixture
def model(tmp_path: Path) -> str:
    tiny.write_folder(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "baked"


def test_an_existing_bake_is_replaced_only_by_force(model: str, out: Path) -> None:
    bake(model, out)
    with pytest.raises(BakeError, match="already holds a baked model"):
        bake(model, out, name="second")
    assert BakedModel(out).name == "model"
    bake(model, out, name="second", force=True)
    assert BakedModel(out).name == "second"
    assert [entry.name for entry in out.parent.iterdir()] == ["baked"]


@pytest.mark.parametrize("force", [False, True])
def test_anything_else_in_the_way_is_left_alone(model: str, out: Path, force: bool) -> None:
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    with pytest.raises(BakeError, match="exists and is not a baked model, it is left alone"):
        bake(model, out, force=force)
    assert (out / "precious.txt").read_text() == "mine"
    assert [entry.name for entry in out.parent.iterdir()] == ["baked"]


def test_a_failed_replacement_keeps_the_old_bake(model: str, out: Path, tmp_path: Path) -> None:
    bake(model, out)
    (tmp_path / "model" / "tokenizer.json").write_text("{")
    with pytest.raises(BakeError):
        bake(model, out, force=True)
    assert verify(out) == []
    assert [entry.name for entry in out.parent.iterdir()] == ["baked"]


def test_what_goes_wrong_while_writing_leaves_nothing(model: str, out: Path) -> None:
    def full(_phase: str, _done: float) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(BakeError, match="No space left on device"):
        bake(model, out, progress=full)
    assert list(out.parent.iterdir()) == []


def test_ctrl_c_leaves_nothing(model: str, out: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from appliance.bake import bake;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"  # a job in the background ignores it
        "bake(sys.argv[1], Path(sys.argv[2]), progress=lambda p, d: os.kill(os.getpid(), signal.SIGINT))"
    )
    done = subprocess.run([sys.executable, "-c", program, model, str(out)], capture_output=True, check=False)
    assert done.returncode == -signal.SIGINT
    assert list(out.parent.iterdir()) == []


def test_the_remains_of_a_killed_bake_are_reused(model: str, out: Path) -> None:
    remains = out.parent / ".baked.baking"
    (remains / "sub").mkdir(parents=True)
    (remains / "model.safetensors").write_bytes(b"half")
    bake(model, out)
    assert verify(out) == []
    assert [entry.name for entry in out.parent.iterdir()] == ["baked"]


def test_two_bakes_of_one_target_at_a_time_are_refused(model: str, out: Path) -> None:
    with staged(out, force=False), pytest.raises(BakeError, match="is being written by another bake"):
        bake(model, out)


def test_a_target_that_cannot_be_made_is_one_line(model: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BakeError, match="cannot be written"):
        bake(model, tmp_path / "file" / "baked")


def test_a_relative_target_is_taken_from_the_working_directory(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bake(model, Path("here"))
    assert verify(tmp_path / "here") == []


def test_a_link_is_followed(model: str, out: Path, tmp_path: Path) -> None:
    bake(model, out)
    (tmp_path / "link").symlink_to(out)
    bake(model, tmp_path / "link", name="second", force=True)
    assert (tmp_path / "link").is_symlink()
    assert BakedModel(out).name == "second"
    assert [entry.name for entry in out.parent.iterdir()] == ["baked"]


def test_files_are_readable_by_others(model: str, out: Path) -> None:
    umask = os.umask(0o022)
    try:
        bake(model, out)
    finally:
        os.umask(umask)
    assert out.stat().st_mode & 0o777 == 0o755
    assert {file.stat().st_mode & 0o777 for file in out.iterdir()} == {0o644}
