"""Starting, stopping and failing: in order, with a reason, and leaving nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.box.conftest import SMALL
from tests.box.running_box import RunningBox, running_box
from tests.tiny_models import make_tiny_model

TINY = ["--kv-cache-memory", "4MiB", "--max-num-seqs", "8"]
MODEL = "SmolLM2-135M-Instruct"


def complete(box: RunningBox, model: str, **fields: Any) -> httpx.Response:
    request = {"model": model, "prompt": "Once", "max_tokens": 4, "temperature": 0, **fields}
    return httpx.post(f"{box.url}/v1/completions", json=request, timeout=60)


def check_nothing_left(box: RunningBox, processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert alive == []
    assert list((box.folder / "run").iterdir()) == []
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", box.port))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_leaves_no_process_and_no_file(tiny: Path, number: signal.Signals) -> None:
    with running_box(tiny, flags=TINY) as box:
        box.wait_ready()
        processes = box.process.children(recursive=True)
        assert len(processes) >= 5  # supervisord, engine, gunicorn and a worker, nginx and a worker
        assert (box.run_dir.stat().st_mode & 0o777) == 0o700
        box.signal(number)
        box.signal(number)
        assert box.wait_ended() == 0
        check_nothing_left(box, processes)


def test_a_stop_while_starting(tiny: Path) -> None:
    with running_box(tiny, flags=TINY) as box:
        box.wait_until(lambda: bool(box.find("supervisord")), 30)
        box.signal(signal.SIGINT)
        assert box.wait_ended() == 0
        check_nothing_left(box, [])


def test_nothing_outlives_a_killed_parent(tiny: Path) -> None:
    with running_box(tiny, flags=TINY) as box:
        box.wait_ready()
        processes = box.process.children(recursive=True)
        box.process.kill()
        _, alive = psutil.wait_procs(processes, timeout=20)
        assert alive == []


def test_a_killed_supervisord_ends_the_box_with_the_reason(tiny: Path) -> None:
    with running_box(tiny, flags=TINY) as box:
        box.wait_ready()
        processes = box.process.children(recursive=True)
        (supervisord,) = box.find("supervisord", "-n")
        supervisord.kill()
        assert box.wait_ended() == 1
        assert box.output.strip().splitlines()[-1].startswith("breadbox: error: supervisord ended unexpectedly")
        check_nothing_left(box, processes)


@pytest.fixture(scope="module")
def two_models(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    second = make_tiny_model("qwen3", tmp_path_factory.mktemp("second")).baked
    with running_box(tiny, second, flags=[*TINY, "--served-model-name", "first", "second"]) as box:
        box.wait_ready()
        yield box


def test_two_models_side_by_side(two_models: RunningBox) -> None:
    models = httpx.get(f"{two_models.url}/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["first", "second"]
    assert len(two_models.find("engine", "--index")) == 2
    answers = {name: complete(two_models, name) for name in ("first", "second")}
    assert {name: answer.json()["model"] for name, answer in answers.items()} == {"first": "first", "second": "second"}
    assert answers["first"].json()["choices"][0]["text"] != answers["second"].json()["choices"][0]["text"]
    assert complete(two_models, "third").status_code == 404


@pytest.mark.parametrize(
    ("words", "index"),
    [
        (("engine", "--index 0"), 0),
        (("engine", "--index 1"), 0),
        (("gunicorn",), 0),
        (("gunicorn",), -1),
        (("nginx: master",), 0),
        (("nginx: worker",), 0),
    ],
    ids=["engine-0", "engine-1", "gunicorn", "worker", "nginx", "nginx-worker"],
)
def test_what_is_killed_comes_back(two_models: RunningBox, words: tuple[str, ...], index: int) -> None:
    box = two_models
    victim = box.find(*words)[index]
    victim.kill()
    box.wait_until(lambda: not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE, 10)

    def answers() -> bool:
        try:
            return all(complete(box, name).status_code == 200 for name in ("first", "second"))
        except httpx.HTTPError:
            return False

    box.wait_until(answers, 45)
    assert box.process.is_running()


def test_a_unix_socket_with_keys(tiny: Path, folder: Path) -> None:
    socket_file = folder / "box.sock"
    with running_box(tiny, flags=[*TINY, "--uds", str(socket_file), "--api-key", "one", "--api-key", "two"]) as box:
        box.wait_ready()
        (line,) = (line for line in box.output.splitlines() if line.strip().startswith("curl "))
        assert "--unix-socket" in line
        for key, answer in (
            ("one", b'"text_completion"'),
            ("two", b'"text_completion"'),
            ("three", b"invalid_api_key"),
        ):
            environment = os.environ | {"KEY": key}
            run = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, timeout=60, check=True)
            assert answer in run.stdout
        assert "two" not in box.output
        (master,) = box.find("nginx: master")
        master.kill()
        box.wait_until(lambda: bool(set(box.find("nginx: master")) - {master}), 30)
        client = httpx.Client(transport=httpx.HTTPTransport(uds=str(socket_file), retries=5))
        box.wait_until(lambda: client.get("http://box/health").status_code == 200, 30)
        client.close()
        box.signal(signal.SIGTERM)
        assert box.wait_ended() == 0
        assert not socket_file.exists()


def test_an_impossible_setting_of_the_engine_ends_the_box_with_the_reason(tiny: Path) -> None:
    with running_box(tiny, flags=["--kv-cache-memory", "1k"]) as box:
        processes = box.process.children(recursive=True)
        assert box.wait_ended() == 1
        last = box.output.strip().splitlines()[-1]
        assert re.match(r"breadbox: error: engine-0 .*kv_cache_memory", last), box.output
        assert "Traceback" not in box.output
        check_nothing_left(box, processes)


def test_a_damaged_model_ends_the_box_with_the_reason(tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(b"\xff" * weights.stat().st_size)
    with running_box(broken, flags=TINY) as box:
        assert box.wait_ended() == 1
        assert "breadbox: error: engine-0 " in box.output.strip().splitlines()[-1]


def test_all_problems_are_reported_before_anything_starts(tmp_path: Path) -> None:
    with running_box(
        tmp_path / "nowhere", flags=["--chat-template", "missing.jinja", "--run-dir", "/dev/null/x"]
    ) as box:
        assert box.wait_ended() == 2
        problems = box.output.strip().splitlines()
        assert len(problems) == 3
        assert all(problem.startswith("breadbox: error: ") for problem in problems)


def test_a_port_that_is_taken(tiny: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with running_box(tiny, flags=["--port", str(taken.getsockname()[1])]) as box:
            assert box.wait_ended() == 2
            assert "Address already in use" in box.output


@pytest.fixture
def streaming(shipped_model: Path, request: pytest.FixtureRequest) -> Iterator[RunningBox]:
    with running_box(shipped_model, flags=[*SMALL, *request.param]) as box:
        box.wait_ready()
        yield box


class Stream(threading.Thread):
    """A client that reads a stream to its end."""

    def __init__(self, box: RunningBox, max_tokens: int) -> None:
        super().__init__()
        self._url = f"{box.url}/v1/completions"
        self._request = {
            **{"model": MODEL, "prompt": "Once upon a time", "max_tokens": max_tokens, "stream": True},
            "logit_bias": {"0": -100, "2": -100},
        }
        self.has_begun = threading.Event()
        self.lines: list[str] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._request, timeout=120) as response:
                for line in response.iter_lines():
                    self.lines.append(line)
                    self.has_begun.set()
        except Exception as error:
            self.error = error
            self.has_begun.set()

    @property
    def events(self) -> list[str]:
        return [line.removeprefix("data: ") for line in self.lines if line.startswith("data: ")]


def start_streams(box: RunningBox, count: int, max_tokens: int) -> list[Stream]:
    streams = [Stream(box, max_tokens) for _ in range(count)]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.has_begun.wait(60)
        assert stream.error is None
    return streams


@pytest.mark.parametrize("streaming", [["--shutdown-timeout", "60"]], indirect=True)
def test_b47_streams_finish_after_sigterm(streaming: RunningBox) -> None:
    box = streaming
    streams = start_streams(box, 5, max_tokens=100)
    os.kill(box.process.pid, signal.SIGTERM)
    box.wait_until(lambda: httpx.get(f"{box.url}/readyz", timeout=10).status_code == 503, 10)
    assert httpx.get(f"{box.url}/livez", timeout=10).status_code == 200
    assert httpx.get(f"{box.url}/readyz", timeout=10).json()["status"] == "draining"
    refused = complete(box, MODEL)
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert refused.json()["error"]["message"]
    for stream in streams:
        stream.join(120)
        assert stream.error is None
        assert stream.events[-1] == "[DONE]"
        assert json.loads(stream.events[-2])["choices"][0]["finish_reason"] == "length"
    assert box.wait_ended() == 0


@pytest.mark.parametrize("streaming", [["--shutdown-timeout", "1"]], indirect=True)
def test_b47_what_is_past_the_grace_ends_with_an_error_event(streaming: RunningBox) -> None:
    box = streaming
    streams = start_streams(box, 3, max_tokens=4000)
    started = time.monotonic()
    os.kill(box.process.pid, signal.SIGTERM)
    for stream in streams:
        stream.join(60)
        assert stream.error is None
        assert stream.events[-1] == "[DONE]"
        assert "error" in json.loads(stream.events[-2])
    assert box.wait_ended() == 0
    assert time.monotonic() - started < 30
