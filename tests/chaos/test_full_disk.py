"""A run directory without room: what dies meanwhile comes back, and the box goes down in good order."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.chaos.faults import write_until_full
from tests.chaos.target import Target, running_target
from tests.tiny_models import make_tiny_model

pytestmark = pytest.mark.box


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[Target, Path]]:
    """A box whose disk is full, and the file that fills it."""
    with running_target(make_tiny_model("llama", tmp_path).baked, []) as target:
        if target.disk is None:
            pytest.skip("a small disk needs root to be mounted")
        file = target.disk / "full"
        write_until_full(file)
        yield target, file


def complete(target: Target) -> httpx.Response:
    body = {"model": "tiny-llama", "prompt": "hi", "max_tokens": 3}
    return httpx.post(f"{target.box.url}/v1/completions", json=body, timeout=120)


def test_what_dies_comes_back(full: tuple[Target, Path]) -> None:
    target, file = full
    assert complete(target).status_code == 200
    engine, worker = target.find_engine(), target.find_api_workers()[0]
    assert engine
    engine.kill()
    worker.kill()
    target.box.wait_until(lambda: (found := target.find_engine()) is not None and found.pid != engine.pid, 60)
    time.sleep(1)  # for what would end because of it
    file.unlink()
    target.wait_whole()
    assert complete(target).status_code == 200


def test_the_box_goes_down_in_good_order(full: tuple[Target, Path]) -> None:
    target, _ = full
    target.box.signal(signal.SIGTERM)
    assert target.box.wait_ended() == 0, target.box.output
    assert "Traceback" not in target.box.output
