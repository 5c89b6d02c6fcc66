"""The bug list of operations and streaming, against the container: the tests that a box outside of one has to pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import docker
import pytest

from tests.e2e.caller import ALIAS, KEY, MODEL, ORIGIN
from tests.image.container import LOCKED_DOWN, running

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = ("tests/e2e/test_basic.py", "tests/e2e/test_bugs_operations.py", "tests/e2e/test_bugs_streaming.py")
FLAGS = [
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--api-workers", "2"),
    *("--api-key", KEY, "--api-key", "second-key", "--served-model-name", MODEL, ALIAS),
    *("--allowed-origins", ORIGIN, "--enable-tokenizer-info-endpoint"),
]


@pytest.mark.timeout(900)
def test_bug_list(client: docker.DockerClient) -> None:
    options = {name: value for name, value in LOCKED_DOWN.items() if name != "network_mode"}
    options["ports"] = {"8000/tcp": ("127.0.0.1", None)}  # some tests put a proxy before it, which knows loopback only
    with running(client, "serve", *FLAGS, environment={"BREADBOX_KV_CACHE_MEMORY": "768MiB"}, **options) as container:
        container.wait_ready()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *FILES, "-q", "-p", "no:cacheprovider"],
            cwd=ROOT,
            # The options of this run select tests of this run.
            env=os.environ | {"BOX_URL": container.published_url, "BOX_KEY": KEY, "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
            timeout=880,
            check=False,
        )
        print("\n".join(line for line in done.stdout.splitlines() if re.search(r"\d+ (passed|failed)", line)))
        assert done.returncode == 0, done.stdout[-6000:] + container.log[-2000:]
