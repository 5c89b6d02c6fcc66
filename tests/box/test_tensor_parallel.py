"""A box whose engine is two processes: it answers, takes up again what a lost rank broke off, and leaves nothing."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.box.running_box import RunningBox, running_box

FLAGS = ["--tensor-parallel-size", "2", "--device", "cpu", "--kv-cache-memory", "4MiB", "--max-num-seqs", "8"]
RANK = "engine.runner.parallel.rank"
REQUEST: dict[str, Any] = {"prompt": "Once", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}


def stream(box: RunningBox, victim: psutil.Process | None = None) -> str:
    """The text of a completion; the victim is killed after its first event."""
    text = ""
    with httpx.stream("POST", f"{box.url}/v1/completions", json=REQUEST, timeout=120) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            text += event["choices"][0]["text"]
            if victim is not None and victim.is_running():
                victim.kill()
    return text


def test_a_box_of_two_ranks(tiny: Path) -> None:
    with running_box(tiny, flags=FLAGS) as box:
        box.wait_ready()
        (rank,) = box.find(RANK)
        undisturbed = stream(box)
        assert stream(box, rank) == undisturbed
        box.wait_until(lambda: bool(box.find(RANK)) and rank not in box.find(RANK), 60)
        box.wait_until(lambda: httpx.get(f"{box.url}/health", timeout=10).status_code == 200, 60)
        assert stream(box) == undisturbed
        assert f"rank 1 of tensor parallelism (pid {rank.pid}) was killed by SIGKILL" in box.output
        processes = box.process.children(recursive=True)
        box.signal(signal.SIGTERM)
        assert box.wait_ended() == 0
        _, alive = psutil.wait_procs(processes, timeout=10)
        assert alive == []


def test_ranks_that_do_not_fit_the_model(tiny: Path) -> None:
    with running_box(tiny, flags=["--tensor-parallel-size", "3"]) as box:
        assert box.wait_ended() == 2
        assert "evenly: set it to one of 1, 2, 4" in box.output.strip().splitlines()[-1]
