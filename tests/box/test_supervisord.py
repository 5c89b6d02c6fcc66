"""The real supervisord, driven as a box drives it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from appliance.supervisor.control import Supervisord, SupervisordGoneError
from appliance.supervisor.run_dir import TEMPORARY
from tests.box.proxy import short_dir

PASSWORD = "secret"
STOPS_AFTER_S = 3
CONFIGURATION = """
[supervisord]
logfile=/dev/null
logfile_maxbytes=0
pidfile={folder}/supervisord.pid

[unix_http_server]
file={folder}/super.sock
username=breadbox
password={password}

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[program:slow]
command=sh -c "trap 'sleep {seconds}; exit' TERM; echo begun > {folder}/begun; while :; do sleep 0.05; done"
startsecs=0

[program:flapping]
command=sleep 0.02
autorestart=true
startsecs=0
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_dir() as folder:
        (folder / TEMPORARY).mkdir()
        text = CONFIGURATION.format(folder=folder, password=PASSWORD, seconds=STOPS_AFTER_S)
        (folder / "supervisord.conf").write_text(text)
        yield folder


@pytest.fixture
def running(folder: Path) -> Iterator[tuple[Supervisord, psutil.Process]]:
    supervisord = Supervisord(folder, PASSWORD)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    process = psutil.Process(supervisord.start(log))
    os.close(log)
    try:
        while not (folder / "begun").exists():  # pytest ends what takes too long
            time.sleep(0.05)
        yield supervisord, process
    finally:
        process.terminate()
        supervisord.set_ended(process.wait(30))


async def test_waiting_for_a_program_to_end_keeps_no_processor_busy(
    running: tuple[Supervisord, psutil.Process],
) -> None:
    supervisord, process = running
    before = process.cpu_times()
    await supervisord.stop("slow", 60)
    after = process.cpu_times()
    assert {program.name: program.state for program in await supervisord.programs()}["slow"] == "STOPPED"
    assert after.user + after.system - before.user - before.system < STOPS_AFTER_S / 3
    await supervisord.stop("slow", 60)  # that it has ended already is none of the caller's business


async def test_a_program_that_is_just_being_started_again_is_stopped(
    running: tuple[Supervisord, psutil.Process],
) -> None:
    supervisord, _ = running
    for _ in range(10):
        await supervisord.stop("flapping", 20)


async def test_a_program_that_does_not_end_in_time_is_told(
    running: tuple[Supervisord, psutil.Process],
) -> None:
    supervisord, _ = running
    with pytest.raises(SupervisordGoneError, match="slow did not end within"):
        await supervisord.stop("slow", STOPS_AFTER_S / 10)
