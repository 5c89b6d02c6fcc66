"""An API worker that is killed takes its own connections with it, and nothing else."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx

from tests.box.conftest import SMALL
from tests.box.running_box import RunningBox, gauge, running_box

NUM_STREAMS = 12
MAX_TOKENS = 300
_OPEN = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_FINISHED = "vllm:request_success_total"


class Stream(threading.Thread):
    """A client that reads to the end, or to where the connection ends."""

    def __init__(self, box: RunningBox) -> None:
        super().__init__()
        self._url = f"{box.url}/v1/completions"
        self.has_begun = threading.Event()
        self.text = ""
        self.is_whole = False

    def run(self) -> None:
        body = {"prompt": "Once upon a time", "max_tokens": MAX_TOKENS, "temperature": 0, "stream": True}
        try:
            with httpx.stream("POST", self._url, json=body | {"ignore_eos": True}, timeout=300) as response:
                for line in response.iter_lines():
                    self.has_begun.set()
                    self.is_whole = line == "data: [DONE]" or self.is_whole
                    if line.startswith("data: {"):
                        self.text += json.loads(line[6:])["choices"][0]["text"]
        except httpx.HTTPError:
            pass
        self.has_begun.set()


def num_open(box: RunningBox) -> float:
    return sum(gauge(box, name) for name in _OPEN)


def test_a_killed_worker_loses_its_own_connections_only(shipped_model: Path) -> None:
    with running_box(shipped_model, flags=[*SMALL, "--api-workers", "2"]) as box:
        box.wait_ready()
        alone = Stream(box)
        alone.start()
        alone.join()
        streams = [Stream(box) for _ in range(NUM_STREAMS)]
        for stream in streams:
            stream.start()
        for stream in streams:
            assert stream.has_begun.wait(120)
        finished = gauge(box, _FINISHED)
        victim = box.find("gunicorn")[-1]
        victim.kill()
        # Those whose client sees the end are soon out of the engine, too.
        box.wait_until(lambda: num_open(box) <= sum(stream.is_alive() for stream in streams), 60)
        for stream in streams:
            stream.join()
        whole = [stream for stream in streams if stream.is_whole]
        assert {stream.text for stream in whole} <= {alone.text}
        assert all(alone.text.startswith(stream.text) for stream in streams)
        box.wait_until(lambda: num_open(box) == 0, 60)
        box.wait_until(lambda: gauge(box, _FINISHED) == finished + NUM_STREAMS, 60)  # the lost ones as aborted
        assert gauge(box, _FINISHED, 'finished_reason="abort"') == NUM_STREAMS - len(whole)
        box.wait_until(lambda: gauge(box, "breadbox:restarts_total", "api-worker") == 1, 60)
        assert gauge(box, "breadbox:restarts_total", "engine-0") == 0
        box.wait_until(lambda: gauge(box, "breadbox:server_load") == 0, 60)
