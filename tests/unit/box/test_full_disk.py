"""What the box's parent writes must neither end the box on a full disk nor be missing when it counts."""

from __future__ import annotations

import json
import time
from pathlib import Path

from appliance.api.drain import Drain
from appliance.supervisor.drain_file import PREPARED_FILE, DrainFile
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
