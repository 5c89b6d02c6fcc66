"""Unmodified clients work at the first try: each script asserts for itself what its client must get."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.caller import KEY, MODEL, Caller
from tests.e2e.clients.conftest import HERE, NODE_MODULES, PYTHON, RunClient, require, run


def test_openai_python_newest(run_script: RunClient) -> None:
    assert "responses passed" in run_script("openai_python.py", python=Path(sys.executable))


@pytest.mark.parametrize(
    ("script", "base"),
    [
        ("openai_python.py", "/v1"),  # the version that the other libraries use
        ("anthropic_python.py", ""),
        ("langchain_client.py", "/v1"),
        ("litellm_client.py", "/v1"),
        ("llama_index_client.py", "/v1"),
    ],
)
def test_python_client(run_script: RunClient, script: str, base: str) -> None:
    require(PYTHON)
    assert "passed" in run_script(script, base)


def test_openai_node(box: Caller, tmp_path: Path) -> None:
    require(PYTHON)
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    require(NODE_MODULES / "node_modules")
    # A module is looked for beside the script.
    (tmp_path / "node_modules").symlink_to(NODE_MODULES / "node_modules")
    script = shutil.copy(HERE / "scripts" / "openai_node.mjs", tmp_path)
    assert "errors passed" in run(["node", "--preserve-symlinks", script, f"{box.url}/v1", KEY, MODEL], tmp_path)
