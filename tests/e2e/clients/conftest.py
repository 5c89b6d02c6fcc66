"""The clients' own environment, made by `setup.sh`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.caller import KEY, MODEL, Caller

HERE = Path(__file__).parent
CACHE = HERE.parent.parent.parent / ".cache"
PYTHON = CACHE / "clients-venv" / "bin" / "python"
NODE_MODULES = CACHE / "clients-node"
SCRIPT_WITHIN_S = 150
RunClient = Callable[..., str]


def require(path: Path) -> None:
    """Skip where the environment was not made; on CI it must be."""
    if path.exists():
        return
    if "CI" in os.environ:
        pytest.fail("run tests/e2e/clients/setup.sh first")
    pytest.skip("tests/e2e/clients/setup.sh was not run")


def run(command: list[str | Path], cwd: Path = HERE) -> str:
    """What the command says; its own assertions decide."""
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "LANGSMITH_TRACING": "false", "OPENAI_API_KEY": KEY}
    environment = (
        os.environ | offline | {"HF_HOME": str(CACHE / "clients-hf"), "HF_DATASETS_CACHE": str(CACHE / "clients-hf")}
    )
    done = subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SCRIPT_WITHIN_S
    )
    output = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, output[-6000:]
    return output


@pytest.fixture
def run_script(box: Caller) -> RunClient:
    """Run one of `scripts/` with the box's address, a key and the model's name."""

    def start(name: str, base: str = "/v1", python: Path = PYTHON) -> str:
        require(python)
        return run([python, HERE / "scripts" / name, box.url + base, KEY, MODEL])

    return start
