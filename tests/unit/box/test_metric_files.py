"""A worker's metrics have their room on the disk before they are mapped."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.supervisor import metric_files

COUNT = """
import os, sys
from pathlib import Path
from appliance.supervisor.metric_files import reserve
reserve(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]), os.getpid())
from appliance.metrics import ApiMetrics
metrics = ApiMetrics(model_names=["m"])
for route in range(60):
    metrics.requests.labels(f"/v1/route/{route}", "POST", "2xx").inc()
print(metrics.render().count("http_requests_total{"))
"""


def test_the_files_are_those_that_are_used_and_have_room(tmp_path: Path) -> None:
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", COUNT], env=environment, capture_output=True, text=True, check=True)
    assert int(ran.stdout) == 60
    assert sorted(path.name.rpartition("_")[0] for path in tmp_path.iterdir()) == sorted(metric_files.KINDS)
    for path in tmp_path.iterdir():
        assert path.stat().st_size == metric_files.BYTES
        assert path.stat().st_blocks * 512 >= metric_files.BYTES


def test_a_full_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fallocate, failures = os.posix_fallocate, iter(range(3))

    def fail_at_first(descriptor: int, offset: int, size: int) -> None:
        if next(failures, None) is not None:
            raise OSError(errno.ENOSPC, "full")
        fallocate(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", fail_at_first)
    monkeypatch.setattr(metric_files, "RETRY_S", 0.01)
    metric_files.reserve(tmp_path, 7)
    assert {path.name for path in tmp_path.iterdir()} == {f"{kind}_7.db" for kind in metric_files.KINDS}
    assert [record.message.split(",")[0] for record in caplog.records] == ["no room for the metrics of an API worker"]


def test_what_the_file_system_cannot_do_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    metric_files.reserve(tmp_path, 7)
    assert "not supported" in caplog.text
