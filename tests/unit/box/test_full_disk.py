"""What the box's parent writes must neither end the box on a full disk nor be missing when it counts."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from appliance.api.drain import Drain
from appliance.box_facts import STUCK_FILE
from appliance.supervisor.drain_file import PREPARED_FILE, DrainFile
from appliance.supervisor.liveness import MAX_LOOK_S, PATIENCE_S, Liveness
from appliance.supervisor.progress_file import PROGRESS_FILE, ProgressFile


def test_the_deadline_needs_no_more_room_than_was_taken_at_the_start(tmp_path: Path) -> None:
    file, drain = DrainFile(tmp_path), Drain(tmp_path)
    file.prepare()
    size = (tmp_path / PREPARED_FILE).stat().st_size
    assert not file.is_written
    assert not drain.is_on
    file.write(30.0)
    assert file.is_written
    assert drain.is_on
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == size
    assert time.monotonic() < float(path.read_text()) <= time.monotonic() + 30.0


def test_progress_that_cannot_be_written_is_written_at_the_next_look(tmp_path: Path) -> None:
    progress = ProgressFile(tmp_path)
    progress.write()
    obstacle = (tmp_path / PROGRESS_FILE).with_suffix(".new")
    obstacle.mkdir()
    progress.write(is_draining=True)
    assert json.loads((tmp_path / PROGRESS_FILE).read_text())["status"] == "not ready"
    obstacle.rmdir()
    progress.write()
    assert json.loads((tmp_path / PROGRESS_FILE).read_text())["status"] == "draining"


def test_a_box_whose_folder_is_gone_can_be_told_to_go_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = DrainFile(tmp_path / "gone")
    file.write(30.0)
    assert not file.is_written
    assert "the API is not told" in caplog.text


def test_a_verdict_that_cannot_be_written_is_written_at_a_later_look(tmp_path: Path) -> None:
    now_s, folder = 0.0, tmp_path / "full"
    liveness = Liveness(folder, lambda: now_s)
    while now_s < 2 * PATIENCE_S:
        now_s += MAX_LOOK_S
        liveness.look(are_ready=False, start_s=1.0)
    folder.mkdir()
    liveness.look(are_ready=False, start_s=1.0)
    assert (folder / STUCK_FILE).exists()
