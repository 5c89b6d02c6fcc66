"""Runs `tests/kernel/interpreter` in a process where Triton interprets its kernels: minutes, so one test a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreter"
ROOT = FOLDER.parents[2]
TIMEOUT_S = 900

pytest.importorskip("triton")


@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("test_*.py")))
def test_interpreted(name: str) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--durations=10", str(FOLDER / name)]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    print(run.stdout)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
