"""Compiles every kernel for chips that are not here: what fits no chip, spills or lacks matrix instructions fails.

The table of registers, spills, shared memory and matrix instructions: ``python -m engine.kernels.aot``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.kernels.chip import CHIPS

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "triton-aot"  # an unchanged kernel is not compiled again
TIMEOUT_S = 900


@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.parametrize("capability", sorted(CHIPS))
def test_every_kernel_compiles(capability: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "engine.kernels.aot", "--arch", str(capability), "--jobs", "2"]
    run = subprocess.run(
        command,
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(CACHE)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    print(run.stdout)
    assert run.returncode == 0, "\n".join(line for line in run.stdout.splitlines() if "FAILED" in line) + run.stderr
