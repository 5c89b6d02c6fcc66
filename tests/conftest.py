"""Fixtures that every test folder may use."""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

from appliance.bake import DEFAULT_MODEL, DEFAULT_SOURCE, bake

TESTS = Path(__file__).resolve().parent
MODELS = TESTS.parent / ".cache" / "models"
# These watch real processes on whatever machine there is; one that was starved is tried again and reported as "rerun".
WATCH_PROCESSES = ("box", "chaos", "e2e", "image", "observability", "page", "unit/terminal")
BESIDE_ANYTHING = ("test_soak.py",)  # long, and nothing to it is who else is there
LINES_TOLD_AT_ONCE = 40


class ToldAtOnce:
    """What failed is told when it fails, too: a run that nobody watches may be ended before its summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After the letter that stands for the outcome."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and report.outcome in ("failed", "rerun"):
            reporter.write_line(f"\n{report.nodeid} ({report.when}, {report.outcome})")
            reporter.write_line("\n".join(report.longreprtext.splitlines()[-LINES_TOLD_AT_ONCE:]))


def pytest_configure(config: pytest.Config) -> None:
    """On a terminal the summary is enough."""
    if not sys.stdout.isatty():
        config.pluginmanager.register(ToldAtOnce(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that compares bytes is marked `exact`: its failure is never luck, and it gets no second try."""
    for item in items:
        if watches_processes(item.path) and not item.get_closest_marker("exact"):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))


def watches_processes(file: Path) -> bool:
    """Whether the tests of this file do."""
    return file.relative_to(TESTS).parent.as_posix().startswith(WATCH_PROCESSES)


class Lanes(LoadFileScheduling):
    """With ``-n 2 --dist loadfile``: what watches processes in one lane, what computes in the other, file by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = TESTS.parent / nodeid.partition("::")[0]
        return "processes" if watches_processes(file) and file.name not in BESIDE_ANYTHING else str(file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Lanes | None:
    """Only in place of the one that knows files."""
    return Lanes(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model in float32, the reference precision."""
    return _baked(f"{DEFAULT_MODEL}-float32", "none")


@pytest.fixture(scope="session")
def shipped_model() -> Path:
    """The default model as `make run` bakes it."""
    return _baked(DEFAULT_MODEL, "int4_a8")


def _baked(name: str, quantization: str) -> Path:
    """Baked by whichever test run comes first, the others wait for it."""
    folder = MODELS / name
    MODELS.mkdir(parents=True, exist_ok=True)
    with (MODELS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "manifest.json").exists():
            bake(DEFAULT_SOURCE, folder, quantization=quantization)
    return folder
