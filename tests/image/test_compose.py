"""compose.yaml, with the real Docker Compose: each profile is valid, and the stack comes up and watches itself.

Grafana is validated, not started: its image comes from a registry only.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import httpx
import pytest

from tests.image.container import IMAGE, completion, patience

ROOT = Path(__file__).resolve().parent.parent.parent
PROMETHEUS = "breadbox-test-prometheus"
COMPOSE = Path(sys.executable).with_name("docker-compose")


def compose(*words: str, environment: dict[str, str] | None = None, check: bool = True) -> str:
    """Run Docker Compose; its output."""
    command = [str(COMPOSE), "--env-file", "/dev/null", "-f", str(ROOT / "compose.yaml"), *words]
    done = subprocess.run(
        command, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=400, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout if check else done.stdout + done.stderr


def config(*profiles: str, **environment: str) -> dict[str, Any]:
    """The whole file, with everything filled in."""
    words = [word for profile in profiles for word in ("--profile", profile)]
    result: dict[str, Any] = json.loads(compose(*words, "config", "--format", "json", environment=environment))
    return result


def test_the_default_is_a_cpu() -> None:
    services = config()["services"]
    assert set(services) == {"appliance", "prometheus", "grafana"}
    assert services["appliance"]["image"] == "breadbox:cpu"
    assert all(port["host_ip"] == "127.0.0.1" for service in services.values() for port in service["ports"])
    grafana = services["grafana"]["environment"]
    assert grafana["GF_AUTH_ANONYMOUS_ENABLED"] == "false"


def test_the_gpu_profile() -> None:
    services = config("gpu", APPLIANCE_CPU_REPLICAS="0")["services"]
    (device,) = services["appliance-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"capabilities": ["gpu"], "driver": "nvidia", "count": 1}
    assert services["appliance-gpu"]["environment"]["BREADBOX_DEVICE"] == "cuda"


def test_a_model_over_two_gpus() -> None:
    service = config("gpu", APPLIANCE_GPUS="2")["services"]["appliance-gpu"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2
    assert service["environment"]["BREADBOX_TENSOR_PARALLEL_SIZE"] == "2"


def test_everything_in_the_example_file_is_used() -> None:
    text = (ROOT / "compose.yaml").read_text()
    names = re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE)
    unused = [name for name in names if name != "COMPOSE_PROFILES" and f"${{{name}:-" not in text]
    assert unused == []


def test_passwords_and_keys_come_from_the_environment() -> None:
    services = config(GRAFANA_ADMIN_PASSWORD="a b", BREADBOX_API_KEY="one,two")["services"]
    assert services["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"] == "a b"
    assert services["appliance"]["environment"]["BREADBOX_API_KEY"] == "one,two"


@pytest.fixture(scope="module")
def stack(client: docker.DockerClient) -> Iterator[dict[str, str]]:
    """Appliance and Prometheus, up and healthy; their URLs."""
    client.images.build(path=str(ROOT / ".ci/image"), dockerfile="prometheus.Dockerfile", tag=PROMETHEUS, rm=True)
    ports = {name: str(_free_port()) for name in ("APPLIANCE_PORT", "PROMETHEUS_PORT")}
    environment = {
        **{"APPLIANCE_IMAGE": IMAGE, "PROMETHEUS_IMAGE": PROMETHEUS, "BREADBOX_KV_CACHE_MEMORY": "512MiB"},
        **{"BREADBOX_API_KEY": "secret", "COMPOSE_PROJECT_NAME": f"breadbox-test-{uuid.uuid4().hex[:6]}", **ports},
    }
    try:
        compose("up", "--detach", "--no-build", "--wait", "appliance", "prometheus", environment=environment)
        yield {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    finally:
        compose("down", "--volumes", "--timeout", "30", environment=environment)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_appliance_answers_with_the_key_only(stack: dict[str, str]) -> None:
    url = f"{stack['APPLIANCE_PORT']}/v1/completions"
    assert httpx.post(url, json=completion(2), timeout=60).status_code == 401
    answer = httpx.post(url, json=completion(2), headers={"authorization": "Bearer secret"}, timeout=60)
    assert answer.status_code == 200


def test_prometheus_sees_the_appliance(stack: dict[str, str]) -> None:
    url = stack["PROMETHEUS_PORT"]
    deadline = time.monotonic() + 60 * patience()
    while time.monotonic() < deadline:
        (target, *_) = httpx.get(f"{url}/api/v1/targets", timeout=10).json()["data"]["activeTargets"]
        if target["health"] == "up":
            break
        time.sleep(0.5)
    assert target["health"] == "up", target
    rules = httpx.get(f"{url}/api/v1/rules", timeout=10).json()["data"]["groups"]
    assert rules
    assert httpx.get(f"{stack['APPLIANCE_PORT']}/metrics", timeout=10).status_code in (401, 404)


def test_a_gpu_that_is_not_there(client: docker.DockerClient) -> None:
    if any("nvidia" in name for name in client.info().get("Runtimes", {})):
        pytest.skip("this machine has one")
    environment = {
        "APPLIANCE_GPU_IMAGE": IMAGE,
        "APPLIANCE_PORT": str(_free_port()),
        "COMPOSE_PROJECT_NAME": "breadbox-test-gpu",
    }
    words = ("--profile", "gpu", "up", "--detach", "--no-build", "appliance-gpu")
    try:
        assert 'could not select device driver "nvidia"' in compose(*words, environment=environment, check=False)
    finally:
        compose("--profile", "gpu", "down", "--volumes", environment=environment)
