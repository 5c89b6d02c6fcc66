"""The parts of the box's parent process: run directory, rendering, log pipes, console, launcher, watch."""

from __future__ import annotations

import asyncio
import configparser
import io
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.box_facts import NGINX_WORKER_DEATHS
from appliance.errors import SettingsError
from appliance.settings import Settings, from_json
from appliance.supervisor.box import Box
from appliance.supervisor.console import Console
from appliance.supervisor.control import ProgramState
from appliance.supervisor.log_pipes import LogPipe
from appliance.supervisor.nginx_log import NginxLog
from appliance.supervisor.readiness import EngineProgress, own_url
from appliance.supervisor.rendering import listen_address, render_box
from appliance.supervisor.run_dir import journal_path, open_run_dir
from appliance.supervisor.watch import MAX_USELESS_KILLS, MAX_USELESS_RESTARTS, Watch
from engine.journal import Journal, make_key
from tests.box.proxy import make_settings

LAUNCHER = Path(sys.modules[Watch.__module__].__file__ or "").with_name("launch.py")


def test_a_temporary_run_dir_is_private_and_goes_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with open_run_dir(Settings()) as run_dir:
        assert run_dir.path.parent == folder
        assert run_dir.path.stat().st_mode & 0o777 == 0o700
        (run_dir.path / "api.sock").touch()
    assert list(folder.iterdir()) == []


def test_a_given_run_dir_keeps_what_is_not_the_boxes(folder: Path) -> None:
    path = folder / "run"
    path.mkdir()
    (path / "mine").touch()
    (path / "engine-0.sock").touch()  # left behind by a box that was killed
    with open_run_dir(Settings(run_dir=path)):
        assert not (path / "engine-0.sock").exists()
        (path / "settings.json").touch()
        with pytest.raises(SettingsError, match="another box is running"):
            open_run_dir(Settings(run_dir=path))
    assert [file.name for file in path.iterdir()] == ["mine"]


def test_what_killed_boxes_left_behind_is_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    for name in ("breadbox-old", "breadbox-new", "other"):
        (folder / name).mkdir()
        (folder / name / "lock").touch()
    for name in ("breadbox-old", "other"):
        os.utime(folder / name / "lock", (0, 0))
    with open_run_dir(Settings()) as living:
        os.utime(living.path / "lock", (0, 0))
        with open_run_dir(Settings()):
            assert living.path.exists()
    assert sorted(path.name for path in folder.iterdir()) == ["breadbox-new", "other"]


def test_without_a_writable_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.supervisor.run_dir.temporary_dirs", lambda: [Path("/nowhere")])
    with pytest.raises(SettingsError, match=r"tried /nowhere\): give one with --run-dir"):
        open_run_dir(Settings())


def test_rendered_files(folder: Path) -> None:
    settings = make_settings(folder, shutdown_timeout=12.5, api_key=("secret",))
    render_box(settings, "password")
    assert from_json((folder / "settings.json").read_text()) == settings
    programs = configparser.ConfigParser(interpolation=None)
    programs.read([folder / "supervisord.conf", *(folder / "programs").iterdir()])
    names = {"program:engine-0", "program:engine-1", "program:api", "program:nginx"}
    assert names < set(programs.sections())
    assert shlex.split(programs["program:engine-1"]["command"])[-3:] == ["engine", "--index", "1"]
    assert programs["program:api"]["stopwaitsecs"] == "23"
    priorities = {name: int(programs[f"program:{name}"]["priority"]) for name in ("nginx", "engine-0", "api")}
    assert priorities["nginx"] < priorities["engine-0"] < priorities["api"]  # stopped the other way round
    for file in folder.rglob("*"):
        assert file.is_dir() or file.stat().st_mode & 0o777 == 0o600
    assert "secret" not in (folder / "nginx.conf").read_text()


@pytest.mark.parametrize(
    ("knobs", "address", "url"),
    [
        ({"host": "0.0.0.0"}, "0.0.0.0:80", "http://127.0.0.1:80"),
        ({"host": "::"}, "[::]:80 ipv6only=off", "http://[::1]:80"),
        ({"host": "::1"}, "[::1]:80", "http://[::1]:80"),
        ({"host": "box.local"}, "box.local:80", "http://box.local:80"),
        ({"uds": Path("/run/x")}, "unix:/run/x", "http://localhost"),
    ],
)
def test_addresses(knobs: dict[str, object], address: str, url: str) -> None:
    settings = Settings(port=80, **knobs)  # type: ignore[arg-type]
    assert (listen_address(settings), own_url(settings)) == (address, url)


def test_the_deaths_of_nginx_workers_are_noted(folder: Path) -> None:
    (folder / "prometheus").mkdir()
    lines: list[bytes] = []
    log = NginxLog(folder, lines.append)
    for words in (
        b"[notice] 9#9: worker process 11 exited with code 0",
        b"[alert] 9#9: worker process 12 exited on signal 9",
        b"[alert] 9#9: worker process 13 exited with code 1",
    ):
        log.read(b"2026/11/29 19:52:37 " + words)
    assert len(lines) == 3
    assert (folder / NGINX_WORKER_DEATHS).read_text().split() == ["12", "13"]


async def test_log_pipes_pass_lines_on_and_remember_the_reason(folder: Path) -> None:
    lines: list[bytes] = []
    pipe = LogPipe(folder / "log", lines.append)
    with (folder / "log").open("wb", buffering=0) as writer:
        writer.write(
            b"2026-11-29 16:00:00,000 INFO    api[1] a.b: starting\n2026-11-29 16:00:00,001 ERROR   api[1] a.b: no "
        )
        await asyncio.sleep(0)
        writer.write(b"bread\nWorker failed to boot\nbye")
    pipe.close()
    assert lines[1:] == [b"2026-11-29 16:00:00,001 ERROR   api[1] a.b: no bread", b"Worker failed to boot", b"bye"]
    assert pipe.reason() == "no bread"


async def test_a_program_that_says_nothing_has_no_reason(folder: Path) -> None:
    pipe = LogPipe(folder / "log", lambda line: None)
    assert pipe.reason() == ""
    pipe.close()


def test_progress_on_a_terminal_is_one_line() -> None:
    out, log = io.BytesIO(), io.BytesIO()
    console = Console(out, log, is_terminal=True)
    console.progress("loading", "(1 %)")
    console.progress("loading", "(2 %)")
    console.progress("loading", "(2 %)")
    console.log(b"a line")
    console.end_progress()
    console.say("ready")
    clear = b"\r\x1b[K"
    assert out.getvalue() == b"loading (1 %)" + clear + b"loading (2 %)" + clear + b"loading (2 %)" + clear + b"ready\n"
    assert log.getvalue() == b"a line\n"


def test_progress_elsewhere_is_a_line_a_phase() -> None:
    out = io.BytesIO()
    console = Console(out, io.BytesIO(), is_terminal=False)
    for phase, detail in (("loading", "(1 %)"), ("loading", "(2 %)"), ("warming up", "(90 %)")):
        console.progress(phase, detail)
    assert out.getvalue() == b"loading (1 %)\nwarming up (90 %)\n"


def test_output_that_nobody_reads_ends_nothing() -> None:
    class Gone(io.BytesIO):
        def write(self, data: object) -> int:
            raise BrokenPipeError

    Console(Gone(), Gone(), is_terminal=True).say("hello")


def test_a_launched_program_dies_with_its_parent(folder: Path) -> None:
    stale = folder / "stale.sock"
    stale.touch()
    script = f"""
import subprocess, sys, os
child = subprocess.Popen([sys.executable, "-S", {str(LAUNCHER)!r}, "--remove", {str(stale)!r}, "--", "cat"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdin.write(b"up"); child.stdin.flush(); child.stdout.read(2)
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    reader, writer = os.pipe()
    parent = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, pass_fds=[writer], check=False)
    os.close(writer)
    pid = int(parent.stdout)
    assert parent.returncode == -signal.SIGKILL
    os.close(reader)
    assert not stale.exists()
    for _ in range(500):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        os.sched_yield()
    pytest.fail("it is still there")


def test_a_program_that_cannot_be_launched() -> None:
    command = [sys.executable, "-S", str(LAUNCHER), "--", "/no/such/program"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "launch: cannot start /no/such/program: No such file or directory\n"


def state(name: str, state: str, pid: int = 0, exit_status: int = 0) -> ProgramState:
    return ProgramState(name, state, pid, exit_status)


def test_fatal_is_a_failure() -> None:
    assert Watch().look([state("api", "RUNNING", 1), state("nginx", "FATAL")], ()) == state("nginx", "FATAL")


def test_an_engine_that_says_its_configuration_is_wrong_has_failed_at_any_time() -> None:
    wrong = state("engine-0", "EXITED", exit_status=2)
    assert Watch(was_ready=True).look([wrong], ()) == wrong
    assert Watch(was_ready=True).look([state("engine-0", "BACKOFF", exit_status=1)], ()) is None


def test_whatever_ends_by_itself_before_the_box_was_ready_has_failed() -> None:
    broken = state("api", "BACKOFF", exit_status=3)
    assert Watch().look([broken], ()) == broken
    assert Watch(was_ready=True).look([broken], ()) is None
    assert Watch().look([state("api", "BACKOFF", exit_status=-1)], ()) is None  # killed: try again


def test_an_engine_that_dies_again_and_again_without_being_ready_has_failed() -> None:
    watch = Watch(was_ready=True)
    looks = [watch.look([state("engine-0", "RUNNING", pid)], ()) for pid in range(1, MAX_USELESS_RESTARTS + 3)]
    assert [look is not None for look in looks] == [False] * (MAX_USELESS_RESTARTS + 1) + [True]


def test_an_engine_that_was_ready_in_between_may_die_as_often_as_it_likes() -> None:
    watch = Watch(was_ready=True)
    assert all(watch.look([state("engine-0", "RUNNING", pid)], {pid}) is None for pid in range(1, 100))
    assert watch.restarts == 98


def test_an_engine_that_a_request_ended_at_once_was_useful(folder: Path) -> None:
    """Between two looks it became ready, took a request up and died; the next one has its pid, but no journal yet."""
    box = Box(make_settings(folder, model=(Path("/models/a"),)), ["a"], Console(io.BytesIO()), "")
    path = journal_path(folder, 0)
    path.parent.mkdir()
    loading = EngineProgress("a", "starting", 0.0, False, 0)
    journal = Journal(path)
    assert box._useful_pids([loading]) == set()
    journal.work([(make_key("r"), 3)], 1.0)
    assert box._useful_pids([loading]) == {os.getpid()}
    watch = Watch(was_ready=True)
    assert all(watch.look([state("engine-0", "RUNNING", pid)], {pid - 1}) is None for pid in range(1, 100))


def test_one_that_is_killed_as_it_starts_gets_more_tries() -> None:
    watch = Watch(was_ready=True)
    looks = []
    for pid in range(1, MAX_USELESS_KILLS + 3):
        looks.append(watch.look([state("engine-0", "RUNNING", pid)], ()))
        watch.note_kill("engine-0")
    assert [look is not None for look in looks] == [False] * (MAX_USELESS_KILLS + 1) + [True]


def test_one_that_ended_by_itself_and_was_started_again_at_once_has_failed_before_the_box_was_ready() -> None:
    watch = Watch()
    assert watch.look([state("engine-0", "RUNNING", 1)], ()) is None
    watch.note_exit("engine-0", 1)
    assert watch.look([state("engine-0", "RUNNING", 2)], ()) == state("engine-0", "RUNNING", 2, 1)
    later = Watch(was_ready=True)
    later.note_exit("engine-0", 1)
    assert later.look([state("engine-0", "RUNNING", 2)], ()) is None
