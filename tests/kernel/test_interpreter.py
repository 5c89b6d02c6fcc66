"""Runs `tests/kernel/interpreter` in processes where Triton interprets its kernels: minutes, so one test a file.

Each of them keeps one processor busy, so all are started at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreter"
ROOT = FOLDER.parents[2]
TIMEOUT_S = 900

pytest.importorskip("triton")


@dataclass(frozen=True)
class Run:
    """One file's tests, under way or done."""

    process: subprocess.Popen[bytes]
    output: Path


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """Of all files that are asked for."""
    folder = tmp_path_factory.mktemp("interpreter")
    items = [item for item in request.session.items if item.path == Path(__file__)]
    started = {name: _start(name, folder / name) for name in (item.callspec.params["name"] for item in items)}  # type: ignore[attr-defined]
    try:
        yield started
    finally:
        for run in started.values():
            run.process.kill()
            run.process.wait()


def _start(name: str, output: Path) -> Run:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--durations=10", str(FOLDER / name)]
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
    return Run(process, output)


@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("test_*.py")))
def test_interpreted(name: str, runs: dict[str, Run]) -> None:
    run = runs[name]
    status = run.process.wait(TIMEOUT_S)
    text = run.output.read_text(encoding="utf-8", errors="replace")
    print(text)
    assert status == 0, text
