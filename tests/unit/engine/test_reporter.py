"""The engine's line of statistics."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from engine.server.reporter import Reporter
from tests.unit.engine.builders import add, make_core, make_message, run


def lines_of(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_a_busy_engine_tells_its_throughput(caplog: pytest.LogCaptureFixture) -> None:
    core = make_core()
    reporter = Reporter(core, 10.0)
    message = make_message(8, max_tokens=4)
    add(core, message)
    core.step()
    with caplog.at_level(logging.DEBUG, "engine.server.reporter"):
        reporter.log()
    (line,) = lines_of(caplog, logging.INFO)
    assert " running=1 waiting=0 " in line
    assert "prefix_cache_hit_rate=0.0%" in line
    assert "prompt_tokens_per_s=0.0 " not in line
    assert "output_tokens_per_s=0.0 " not in line


def test_an_idle_engine_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    core = make_core()
    reporter = Reporter(core, 10.0)
    add(core, make_message(8))
    run(core)
    with caplog.at_level(logging.DEBUG, "engine.server.reporter"):
        reporter.log()
        reporter.log()
    assert len(lines_of(caplog, logging.INFO)) == 1
    (idle,) = lines_of(caplog, logging.DEBUG)
    assert "prompt_tokens_per_s=0.0 output_tokens_per_s=0.0 running=0" in idle
    assert "prefix_cache_hit_rate=none" in idle


def test_it_keeps_the_counts_when_it_ends(tmp_path: Path) -> None:
    core = make_core(counts_path=tmp_path / "counts.json")
    reporter = Reporter(core, 0.0)
    reporter.start()
    add(core, make_message(8))
    run(core)
    reporter.stop()
    assert not reporter.is_alive()
    assert "generation_tokens" in (tmp_path / "counts.json").read_text()


def test_it_logs_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    core = make_core()
    logged = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: logged.set()  # type: ignore[method-assign]
    logger = logging.getLogger("engine.server.reporter")
    logger.addHandler(handler)
    reporter = Reporter(core, 0.05)
    try:
        with caplog.at_level(logging.DEBUG, logger.name):
            reporter.start()
            assert logged.wait(10)
    finally:
        reporter.stop()
        logger.removeHandler(handler)
