"""`bench startup`: boxes are started, timed, stopped; what goes wrong is told."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path

import pytest

from appliance.bake import DEFAULT_MODEL
from appliance.bench.http_client import HttpServer
from appliance.bench.started_box import Start, StartPlan, start_and_stop
from appliance.bench.startup import (
    add_startup_flags,
    evict_from_page_cache,
    format_startup,
    make_plan,
    make_startup_record,
)
from appliance.errors import ApplianceError
from tests.unit.bench.fake_box import PHASES

GOLDEN = """\
============ Startup Benchmark Result ============
-----------------Cold starts (1)------------------
Process start to ready (s):              4.00
Process start to first token (s):        4.50
-----------------Warm starts (3)------------------
Process start to ready (s):              2.00 (1.00–3.00)
Process start to first token (s):        2.50 (1.50–3.50)
  loading weights (s):                   0.25
  warming up (s):                        0.50
Idle memory, all processes (MiB PSS):    512.00
=================================================="""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def plan(word: str = "", timeout_s: float = 60.0) -> StartPlan:
    port = free_port()
    command = [sys.executable, "-m", "tests.unit.bench.fake_box", str(port), *([word] if word else [])]
    return StartPlan(command, HttpServer("127.0.0.1", port), "m", timeout_s)


def test_start() -> None:
    start = start_and_stop(plan())
    assert 0 < start.ready_s < start.first_token_s
    assert start.phases == PHASES
    assert start.memory_bytes is not None


@pytest.mark.parametrize(
    ("word", "timeout_s", "message"),
    [
        ("dies", 60.0, "the box ended with exit status 1: .*no such model"),
        ("refuses", 60.0, "its first request failed: HTTP 500: out of order"),
        ("", 0.001, r"not ready within 0\.001 s: it printed nothing"),
    ],
)
def test_start_that_fails(word: str, timeout_s: float, message: str) -> None:
    with pytest.raises(ApplianceError, match=message):
        start_and_stop(plan(word, timeout_s))


def test_report() -> None:
    warm = [Start(at_s, at_s + 0.5, PHASES, 2**29) for at_s in (1.0, 3.0, 2.0)]
    assert format_startup([Start(4.0, 4.5)], warm) == GOLDEN
    record = make_startup_record([], warm)
    assert (record["avg_cold_startup_time"], record["avg_warm_startup_time"]) == (0.0, 2.5)
    assert record["warm_starts"][0]["phases"] == PHASES


def test_flags_go_to_the_box(smollm2: Path) -> None:
    parser = argparse.ArgumentParser()
    add_startup_flags(parser)
    flags = [
        str(smollm2),
        "--max-model-len",
        "1k",
        "--no-enable-prefix-caching",
        "--api-key",
        "k",
        "--num-iters-warm",
        "1",
    ]
    made, models = make_plan(parser.parse_intermixed_args(flags))
    command = list(made.command)
    assert command[1:4] == ["-m", "appliance", "serve"]
    assert command[command.index("--max-model-len") + 1] == "1k"
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--port") + 1] == str(made.server.port)
    assert command[command.index("--model") + 1] == str(smollm2)
    assert "--no-enable-prefix-caching" in command
    assert "--num-iters-warm" not in command
    assert made.server.headers == {"Authorization": "Bearer k"}
    assert made.model == DEFAULT_MODEL
    assert models == [smollm2]


def test_eviction_leaves_files_alone(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"x" * 10000)
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    evict_from_page_cache([tmp_path])
    assert (tmp_path / "weights").read_bytes() == b"x" * 10000
