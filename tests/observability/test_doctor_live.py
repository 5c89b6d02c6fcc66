"""`breadbox doctor` before real boxes: one that is well, and real troubles, each provoked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.box.conftest import SMALL
from tests.box.proxy import STOCK_CONFIG, free_port, running_nginx, short_dir
from tests.box.running_box import RunningBox, running_box
from tests.observability.load import MODEL, complete, in_background

# As many proxies are set up: they don't heed what the box says about buffering.
BUFFERING = STOCK_CONFIG.replace("location / {{", "location / {{ proxy_ignore_headers X-Accel-Buffering;")
CROWDED = [*SMALL, "--max-num-seqs", "2", "--max-num-batched-tokens", "2048", "--api-workers", "1"]


def doctor(url: str, *flags: str, run_dirs: Path | None = None) -> tuple[int, dict[str, Any]]:
    """Exit status and report of the command."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BREADBOX_")}
    environment["XDG_RUNTIME_DIR"] = str(run_dirs or "/nowhere")
    command = [sys.executable, "-m", "appliance", "doctor", "--url", url, "--json", "--seconds", "2", *flags]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert result.stderr == ""
    return result.returncode, json.loads(result.stdout)


def troubles(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["trouble"]: finding for finding in report["findings"]}


def find_under_load(url: str, *flags: str, advice: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The troubles of a box under load, examined until these are told with these words of advice among them.

    How soon depends on the machine.
    """
    deadline = time.monotonic() + 120
    while True:
        status, report = doctor(url, "--no-probe", *flags)
        found = troubles(report)
        assert status == (1 if found else 0)
        if all(words in found.get(trouble, {"advice": ""})["advice"] for trouble, words in advice.items()):
            return found
        assert time.monotonic() < deadline, f"found only {found}"


@pytest.fixture(scope="module")
def crowded(shipped_model: Path) -> Iterator[RunningBox]:
    """A box that runs only two requests at once, and long prompts in one step."""
    with running_box(shipped_model, flags=CROWDED) as box:
        box.wait_ready()
        yield box


def test_a_healthy_box(crowded: RunningBox) -> None:
    # What the tests' machine does beside is not the box's trouble, so its patience is long here.
    status, report = doctor(crowded.url, "--max-ttft", "60", "--max-itl", "10", run_dirs=crowded.folder / "run")
    assert (status, report["findings"]) == (0, [])
    assert report["not_examined"] == ["logs (--log FILE)"]


def test_a_buffering_proxy(crowded: RunningBox) -> None:
    with short_dir() as folder:
        port, config = free_port(), folder / "nginx.conf"
        config.write_text(BUFFERING.format(folder=folder, user="", port=port, upstream_port=crowded.port))
        with running_nginx(config, port):
            status, report = doctor(f"http://127.0.0.1:{port}", "--max-ttft", "60", "--max-itl", "10")
            assert (status, set(troubles(report))) == (1, {"stream-stutter"})
            assert "chunks of a stream came in" in report["findings"][0]["evidence"][0]
            _, report = doctor(f"http://127.0.0.1:{port}", "--max-ttft", "60", "--proxy-config", str(config))
    found = troubles(report)
    assert "proxy_buffering" in found["stream-stutter"]["advice"]
    assert "60 s of silence" in found["cut-generations"]["evidence"][0]


def test_a_queue(crowded: RunningBox) -> None:
    with in_background(*[lambda: complete(crowded, max_tokens=100)] * 8):
        advice = {"slow-first-token": "--max-num-seqs", "low-throughput": "--max-num-seqs"}
        find_under_load(crowded.url, "--max-ttft", "0.1", "--max-itl", "10", advice=advice)


def test_long_prompts_between_tokens(shipped_model: Path) -> None:
    with running_box(shipped_model, flags=[*SMALL, "--max-num-batched-tokens", "2048"]) as box:
        box.wait_ready()
        numbers = count()

        def read_long() -> None:
            number = next(numbers)
            complete(box, prompt=[1000 + (number * 13 + i * number) % 997 for i in range(1500)], max_tokens=1)
            complete(box, prompt=[7, 8], max_tokens=20)

        with in_background(*[lambda: complete(box, prompt=[7, 8], max_tokens=60)] * 2, read_long):
            advice = {"token-spikes": "--long-prefill-token-threshold"}
            find_under_load(box.url, "--max-ttft", "60", "--max-itl", "0.05", advice=advice)


@pytest.fixture(scope="module")
def quick(tiny: Path) -> Iterator[RunningBox]:
    """A box over a tiny model."""
    with running_box(tiny, flags=["--kv-cache-memory", "4MiB", "--max-num-seqs", "8"]) as box:
        box.wait_ready()
        yield box


def test_clients_that_give_up(quick: RunningBox) -> None:
    model = httpx.get(f"{quick.url}/v1/models", timeout=20).json()["data"][0]["id"]
    for _ in range(8):
        complete(quick, model=model, prompt="One", max_tokens=2)
    request = {"model": model, "prompt": "One", "max_tokens": 250, "ignore_eos": True, "stream": True}

    def give_up() -> None:
        with httpx.stream("POST", f"{quick.url}/v1/completions", json=request, timeout=20) as response:
            next(response.iter_lines())

    with in_background(give_up):  # again and again: the model is quick, some answers are complete before they are left
        advice = {"cut-generations": "raise the timeouts of clients"}
        found = find_under_load(quick.url, "--max-ttft", "60", "--max-itl", "10", advice=advice)
    assert "were given up by their clients" in found["cut-generations"]["evidence"][0]


def test_a_killed_engine(quick: RunningBox) -> None:
    (engine,) = quick.find("engine", "--index 0")
    engine.kill()
    quick.wait_until(lambda: quick.find("engine", "--index 0") not in ([], [engine]), 60)
    quick.wait_until(lambda: httpx.get(f"{quick.url}/health", timeout=5).status_code == 200, 60)
    status, report = doctor(quick.url, "--no-probe", "--max-ttft", "60")
    assert status == 1
    assert troubles(report)["crash"]["evidence"][0] == "engine-0 was started again 1 times"


def test_too_little_memory_to_start(tiny: Path, tmp_path: Path) -> None:
    with running_box(tiny, flags=["--kv-cache-memory", "1k"]) as box:
        assert box.wait_ended() == 1
        log = tmp_path / "log"
        log.write_text(box.output)
        status, report = doctor(box.url, "--log", str(log))
    assert status == 2
    assert set(troubles(report)) == {"unreachable", "oom-at-start"}
    assert MODEL not in json.dumps(report)


def test_flags_that_are_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "appliance", "doctor", "--log", str(tmp_path / "none")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr.strip().endswith("cannot be read: No such file or directory")
