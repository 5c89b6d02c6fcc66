"""Which engines are killed because they hang, and when only a new container would help. The clock is the test's."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from appliance.box_facts import STUCK_FILE
from appliance.supervisor import hang_watch, liveness
from appliance.supervisor.control import ProgramState
from appliance.supervisor.hang_watch import MIN_START_S, HangWatch
from appliance.supervisor.liveness import Liveness
from appliance.supervisor.run_dir import journal_path
from engine.autopsy import note_path

TIMEOUT_S = 10.0
ENGINE = """
import sys
from pathlib import Path
from engine.journal import Journal
journal = Journal(Path(sys.argv[1]), allowance_s=10.0)
print("there", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Engine:
    """A process with a journal that does what it is told."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        path = journal_path(run_dir, 0)
        path.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-c", ENGINE, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._hear() == "there"
        self.clock = Clock()
        self.watch = HangWatch(run_dir, TIMEOUT_S, self.clock)

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self._hear() == "done"

    def _hear(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def look(self, seconds: float) -> bool:
        """Look once a second for so long; whether it was killed."""
        program = ProgramState("engine-0", "RUNNING", self.process.pid, 0)
        for _ in range(round(seconds)):
            self.clock.now_s += 1.0
            if self.watch.look([program, ProgramState("api", "RUNNING", 1, 0)]):
                assert self.process.wait(30) == -signal.SIGKILL
                return True
        return False


@contextmanager
def running(run_dir: Path) -> Iterator[Engine]:
    engine = Engine(run_dir)
    try:
        yield engine
    finally:
        engine.process.kill()
        engine.process.communicate()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with running(tmp_path) as engine:
        yield engine


def test_an_engine_that_beats_lives(engine: Engine) -> None:
    for _ in range(10):
        engine.tell("journal.idle()")
        assert not engine.look(9)


def test_an_idle_engine_whose_beat_stands_still_is_killed_and_the_next_one_knows(engine: Engine) -> None:
    engine.tell("journal.idle()")
    assert not engine.look(9)
    assert engine.look(5)
    assert "no sign of life" in note_path(journal_path(engine.run_dir, 0)).read_text()


def test_a_step_may_take_its_time(engine: Engine) -> None:
    engine.tell("journal.work([(b'12345678', 3)], 60.0)")
    assert not engine.look(59)
    assert engine.look(5)
    assert "in a step" in note_path(journal_path(engine.run_dir, 0)).read_text()


def test_loading_may_take_longer_still(engine: Engine) -> None:
    assert not engine.look(MIN_START_S - 5)
    engine.tell("journal.load()")
    assert not engine.look(MIN_START_S - 5)
    assert engine.look(20)


def test_a_stopped_engine_is_killed_whatever_it_was_doing_and_no_request_is_blamed(engine: Engine) -> None:
    engine.tell("journal.work([(b'12345678', 3)], 1000.0)")
    process = psutil.Process(engine.process.pid)
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        pass
    assert engine.look(TIMEOUT_S + 5)
    assert not note_path(journal_path(engine.run_dir, 0)).exists()


def test_time_in_which_it_waits_for_a_processor_does_not_count(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As seen on a machine whose other programs leave it a tenth of the time."""
    monkeypatch.setattr(hang_watch, "_queued_seconds", lambda pid: {"1": 0.0, "2": 0.9 * engine.clock.now_s})
    engine.tell("journal.idle()")
    assert not engine.look(90)
    assert engine.look(20)


def test_a_box_that_stood_still_itself_kills_nobody(engine: Engine) -> None:
    engine.tell("journal.idle()")
    assert not engine.look(3)
    engine.clock.now_s += 10_000.0
    assert not engine.look(3)
    engine.tell("journal.idle()")
    assert not engine.look(9)


def test_an_engine_without_a_journal_yet_is_loading(engine: Engine) -> None:
    journal_path(engine.run_dir, 0).unlink()
    assert not engine.look(MIN_START_S - 5)
    assert engine.look(20)


def test_without_a_timeout_nobody_is_killed(engine: Engine) -> None:
    engine.watch = HangWatch(engine.run_dir, 0.0, engine.clock)
    assert not engine.look(10_000)


def test_a_box_is_not_alive_once_an_engine_stays_away_for_long(tmp_path: Path) -> None:
    clock = Clock()
    alive = Liveness(tmp_path, clock)
    limit_s = liveness.PATIENCE_S + liveness.START_FACTOR * 20.0

    def look(seconds: float, are_ready: bool) -> bool:
        for _ in range(round(seconds)):
            clock.now_s += 1.0
            alive.look(are_ready, start_s=20.0)
        return (tmp_path / STUCK_FILE).exists()

    assert not look(limit_s, are_ready=False)
    assert not look(1, are_ready=True)
    clock.now_s += 10_000.0  # the box itself stood still
    assert not look(limit_s - 10, are_ready=False)
    assert look(20, are_ready=False)
    assert not look(1, are_ready=True)  # it came back after all
