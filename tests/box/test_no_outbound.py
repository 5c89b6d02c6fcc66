"""A running box talks to nobody: every connection that its programs try to make is watched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.box.running_box import running_box

SOURCE = Path(__file__).parent / "connections.c"
KNOCK = "import socket; socket.socket().connect_ex(('192.0.2.1', 9))"  # an address that is nobody's
ASKED = ("/", "/docs", "/openapi.json", "/metrics", "/v1/models", "/health", "/readyz")


@pytest.fixture
def watched(tmp_path: Path) -> dict[str, str]:
    """The environment under which connections to the outside are noted."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path / "connections.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "OUTBOUND_LOG": str(tmp_path / "outbound")}


def test_it_would_be_seen(watched: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", KNOCK], env=os.environ | watched, check=True)
    assert "192.0.2.1 port 9" in Path(watched["OUTBOUND_LOG"]).read_text()


def test_a_box_connects_to_nobody(tiny: Path, watched: dict[str, str]) -> None:
    with running_box(tiny, environment=watched) as box:
        box.wait_ready()
        for path in ASKED:
            assert httpx.get(box.url + path, timeout=30).status_code == 200
        body = {"model": "tiny-llama", "prompt": "hi", "max_tokens": 4}
        for fields in ({}, {"stream": True}, {"structured_outputs": {"regex": "[ab]{2}"}}):
            answer = httpx.post(f"{box.url}/v1/completions", json=body | fields, timeout=60)
            assert answer.status_code == 200, answer.text
    log = Path(watched["OUTBOUND_LOG"])
    assert not log.exists() or not log.read_text()
