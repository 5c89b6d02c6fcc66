"""An engine whose runner is several processes: a lost one ends it, and is told to the next engine if it was a fault."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

from engine.autopsy import note_path
from engine.errors import ConfigError, EngineError, RankLostError
from engine.server import EngineServer
from tests.unit.engine_process import CountingRunner, make_config
from tests.unit.running_engine import PATIENCE_S, socket_folder


class TwoProcesses(CountingRunner):
    """Hands out what it is to call when a process is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: SimpleQueue[Callable[[EngineError], None]] = SimpleQueue()
        self.is_closed = False

    def on_fault(self, report: Callable[[EngineError], None]) -> None:
        self.reports.put(report)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_folder() as path:
        yield path
    gc.unfreeze()


@pytest.mark.parametrize(
    ("loss", "status", "is_noted"),
    [
        (RankLostError("rank 1 was killed by SIGKILL", is_own_fault=False), 1, False),
        (RankLostError("rank 1 was killed by SIGSEGV", is_own_fault=True), 1, True),
        (ConfigError("rank 1: no memory"), 2, False),
    ],
    ids=["killed", "crashed", "config"],
)
def test_a_lost_rank(folder: Path, loss: EngineError, status: int, is_noted: bool) -> None:
    journal, runner = folder / "engine.journal", TwoProcesses()
    server = EngineServer(make_config(folder / "engine.sock", journal_path=journal), lambda config, progress: runner)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.run)
        runner.reports.get(timeout=PATIENCE_S)(loss)
        assert running.result(PATIENCE_S) == status
    assert runner.is_closed
    assert server.status.error == str(loss)
    assert note_path(journal).exists() == is_noted
    assert not is_noted or str(loss) in note_path(journal).read_text()


def test_an_orderly_end_ends_the_processes(folder: Path) -> None:
    runner = TwoProcesses()
    server = EngineServer(make_config(folder / "engine.sock"), lambda config, progress: runner)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.run)
        runner.reports.get(timeout=PATIENCE_S)
        server.stop()
        assert running.result(PATIENCE_S) == 0
    assert runner.is_closed
