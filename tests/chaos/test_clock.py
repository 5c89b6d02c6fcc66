"""The wall clock is set back: a healthy API worker is nobody's prey."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.chaos.target import own_clock, write_offset

TIMEOUT_S = 2
APP = """
import os

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            event = (await receive())["type"]
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})
"""


def test_an_api_worker_lives_on_when_the_clock_is_set_back(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(APP)
    command = [sys.executable, "-m", "gunicorn", "--timeout", str(TIMEOUT_S), "--bind", f"unix:{tmp_path}/api.sock"]
    command += ["--worker-class", "appliance.supervisor.worker.Worker", "--no-control-socket", "bare:app"]
    with own_clock(tmp_path) as (clock, environment):
        if clock is None:
            pytest.skip("a clock of its own needs a C compiler")
        paths = os.pathsep.join([str(tmp_path), os.getcwd()])
        environment = os.environ | environment | {"PYTHONPATH": paths}
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
            try:
                before = _worker(tmp_path)
                write_offset(clock, -3600.0)
                time.sleep(3 * TIMEOUT_S)
                assert _worker(tmp_path) == before
            finally:
                process.terminate()
                _, errors = process.communicate()
    assert "WORKER TIMEOUT" not in errors


def _worker(folder: Path) -> str:
    """The process that answers."""
    socket = folder / "api.sock"
    while not socket.exists():  # pytest ends what takes too long
        time.sleep(0.05)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://worker", timeout=60) as client:
        return client.get("/").text
