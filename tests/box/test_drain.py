"""`breadbox drain` and `breadbox health`: out of rotation, while everything that comes is still served."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from appliance.supervisor.progress_file import ProgressFile
from appliance.supervisor.readiness import EngineProgress
from tests.box.proxy import free_port, running_proxy
from tests.box.running_box import RunningBox, gauge, running_box

TINY = ["--kv-cache-memory", "4MiB", "--max-num-seqs", "8"]


def breadbox(box: RunningBox, *words: str) -> subprocess.CompletedProcess[str]:
    """A command on the machine that the box runs on."""
    environment = os.environ | {"XDG_RUNTIME_DIR": str(box.folder / "run")}
    command = [sys.executable, "-m", "appliance", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def complete(box: RunningBox, max_tokens: int) -> httpx.Response:
    body = {"prompt": "Once", "max_tokens": max_tokens, "ignore_eos": True}
    return httpx.post(f"{box.url}/v1/completions", json=body, timeout=60)


def status(box: RunningBox, path: str) -> int:
    return httpx.get(box.url + path, timeout=10).status_code


def test_a_drained_box_is_not_ready_but_serves(tiny: Path) -> None:
    with running_box(tiny, flags=TINY) as box:
        box.wait_ready()
        assert breadbox(box, "health").returncode == 0
        assert gauge(box, "breadbox:draining") == 0
        drained = breadbox(box, "drain", "--settle", "0.5", "--timeout", "30")
        assert (drained.returncode, drained.stderr) == (0, "")
        assert "nothing runs" in drained.stdout
        report = httpx.get(f"{box.url}/readyz", timeout=10)
        assert (report.status_code, report.json()["status"]) == (503, "draining")
        assert report.headers["retry-after"]
        assert [status(box, path) for path in ("/health", "/livez", "/startupz")] == [200, 200, 200]
        assert complete(box, 4).status_code == 200
        assert gauge(box, "breadbox:draining") == 1
        assert breadbox(box, "drain", "--undo").returncode == 0
        assert status(box, "/readyz") == 200


def test_a_drain_waits_for_what_runs(tiny: Path) -> None:
    with running_box(tiny, flags=[*TINY, "--max-model-len", "256"]) as box:
        box.wait_ready()
        ended = threading.Event()

        def keep_busy() -> None:
            while not ended.is_set():
                complete(box, 200)

        caller = threading.Thread(target=keep_busy)
        caller.start()
        box.wait_until(lambda: gauge(box, "vllm:num_requests_running") > 0, 30)
        busy = breadbox(box, "drain", "--timeout", "1")
        ended.set()
        caller.join()
        assert busy.returncode in (0, 1)  # between two requests nothing runs
        assert breadbox(box, "drain", "--timeout", "30").returncode == 0


def test_where_no_box_runs(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
    for words in (["health", "--run-dir", str(tmp_path)], ["drain", "--run-dir", str(tmp_path)]):
        command = [sys.executable, "-m", "appliance", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert done.stderr == f"breadbox: error: no box is running in {tmp_path}\n"


@pytest.mark.parametrize("knobs", [{}, {"root_path": "/llm"}])
def test_probes_while_the_api_is_away(knobs: dict[str, str]) -> None:
    prefix, admin_port = knobs.get("root_path", ""), free_port()
    with running_proxy(admin_port=admin_port, **knobs) as settings:
        assert settings.run_dir is not None
        progress = ProgressFile(settings.run_dir)
        progress.write([EngineProgress("m", "loading weights", 40.0, False, 7, {"starting": 0.5})])
        for port in (settings.port, admin_port):
            url = f"http://127.0.0.1:{port}{prefix}"
            alive = httpx.get(f"{url}/livez")
            assert (alive.status_code, alive.json()) == (200, {"status": "alive"})
            for path in ("/readyz", "/startupz"):
                response = httpx.get(url + path)
                assert response.status_code == 503
                assert response.headers["retry-after"]
                assert response.headers["content-type"] == "application/json"
                (model,) = response.json()["models"]
                assert (response.json()["status"], model["phase"], model["seconds"]) == (
                    "not ready",
                    "loading weights",
                    {"starting": 0.5},
                )
            assert httpx.head(f"{url}/readyz").status_code == 503
        progress.write(is_draining=True)
        report = httpx.get(f"http://127.0.0.1:{settings.port}{prefix}/readyz").json()
        assert (report["status"], len(report["models"])) == ("draining", 1)


def test_a_prefix_that_the_outer_proxy_took_away_changes_nothing() -> None:
    admin_port = free_port()
    with running_proxy(admin_port=admin_port, root_path="/llm") as settings:
        for prefix in ("", "/llm"):
            main, admin = (f"http://127.0.0.1:{port}{prefix}" for port in (settings.port, admin_port))
            for url in (main, admin):
                assert httpx.get(f"{url}/livez").status_code == 200
            for path in ("/metrics", "/load"):
                assert httpx.get(main + path).status_code == 404, "it is for the admin port alone"
                assert httpx.get(admin + path).status_code == 502, "the API is away"
