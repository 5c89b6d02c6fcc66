"""Metrics on a port of their own: without a key there, and not at all on the port of the clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx

from appliance.preflight import _check_address
from appliance.settings import Settings
from tests.box.proxy import free_port
from tests.box.running_box import running_box

KEY = {"authorization": "Bearer secret"}


def test_admin_port(tiny: Path) -> None:
    port = free_port()
    flags = ["--kv-cache-memory", "4MiB", "--max-num-seqs", "8", "--api-key", "secret", "--admin-port", str(port)]
    with running_box(tiny, flags=flags) as box:
        box.wait_ready()
        admin = f"http://127.0.0.1:{port}"
        assert "vllm:num_requests_running" in httpx.get(f"{admin}/metrics", timeout=20).text
        assert httpx.get(f"{admin}/load", timeout=20).json() == {"server_load": 0}
        assert httpx.get(f"{admin}/readyz", timeout=20).status_code == 200
        for path in ("/", "/v1/models", "/metrics/", "//metrics", "/docs", "/tokenize"):
            assert httpx.get(admin + path, timeout=20).status_code == 404
        # Neither a key nor the admin server's mark opens anything else.
        mark = {"x-breadbox-admin": "yes"}
        assert httpx.get(f"{box.url}/metrics", headers=KEY | mark, timeout=20).status_code == 404
        assert httpx.get(f"{box.url}/v1/models", headers=mark, timeout=20).status_code == 401
        assert httpx.get(f"{box.url}/v1/models", headers=KEY, timeout=20).status_code == 200
        report = examine(box.url, box.folder / "run")
        assert report["findings"] == []


def test_a_locked_admin_port_asks_for_the_key(tiny: Path) -> None:
    port = free_port()
    flags = ["--kv-cache-memory", "4MiB", "--max-num-seqs", "8", "--api-key", "secret", "--lock-admin"]
    with running_box(tiny, flags=[*flags, "--admin-port", str(port)]) as box:
        box.wait_ready()
        admin = f"http://127.0.0.1:{port}"
        for path in ("/metrics", "/load"):
            refused = httpx.get(admin + path, headers={"x-breadbox-admin": "yes"}, timeout=20)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
            assert httpx.get(admin + path, headers=KEY, timeout=20).status_code == 200
            assert httpx.get(box.url + path, headers=KEY, timeout=20).status_code == 404
        assert httpx.get(f"{admin}/readyz", timeout=20).status_code == 200
        assert examine(box.url, box.folder / "run")["findings"] == []


def test_it_cannot_be_locked_without_a_key() -> None:
    problems = list(_check_address(Settings(host="127.0.0.1", port=free_port(), lock_admin=True)))
    assert problems == ["--lock-admin: there is no key to lock it with; set --api-key or --api-key-file"]
    for keys in ({"api_key": ("k",)}, {"api_key_file": Path("/keys.toml")}):
        locked = Settings(host="127.0.0.1", port=free_port(), lock_admin=True, **keys)
        assert list(_check_address(locked)) == []


def examine(url: str, run_dirs: Path) -> dict[str, object]:
    """The doctor finds port and key in the run directory."""
    command = [
        sys.executable,
        "-m",
        "appliance",
        "doctor",
        "--url",
        url,
        "--json",
        "--seconds",
        "0.2",
        "--max-ttft",
        "60",
    ]
    environment = os.environ | {"XDG_RUNTIME_DIR": str(run_dirs)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    report: dict[str, object] = json.loads(result.stdout)
    return report


def test_it_must_be_another_port_and_a_free_one() -> None:
    port = free_port()
    same = Settings(host="127.0.0.1", port=port, admin_port=port)
    assert list(_check_address(same)) == [f"--admin-port: {port} is the port of the box itself"]
    assert list(_check_address(Settings(host="127.0.0.1", port=port, admin_port=free_port()))) == []
