"""Under every restriction at once: it starts, answers, writes only where it says, and talks to nobody."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any

import docker
import pytest

from appliance import __version__
from tests.image.container import IMAGE, LOCKED_DOWN, completion, running

PROGRAMS = ("breadbox serve", "supervisord", "appliance engine --index 0", "gunicorn", "nginx: master", "nginx: worker")


def test_all_restrictions_together(client: docker.DockerClient) -> None:
    with running(client, **LOCKED_DOWN) as container:
        container.wait_ready()
        status, text = container.ask("/v1/completions", completion(4))
        assert status == 200, text
        assert json.loads(text)["usage"]["completion_tokens"] == 4
        processes = container.processes()
        commands = "\n".join(process["command"] for process in processes)
        assert [program for program in PROGRAMS if program not in commands] == []
        assert {uid for process in processes for uid in process["uid"]} == {"12345"}
        assert {int(process["capabilities"], 16) for process in processes} == {0}
        assert processes[0]["pid"] == 1
        assert "breadbox serve" in processes[0]["command"]
        assert container.run("ls", "-A", "/dev/shm") == ""
        container.docker.stop(timeout=60)
        assert container.state["ExitCode"] == 0, container.log
        assert container.state["OOMKilled"] is False


@pytest.mark.parametrize("place", ["/tmp", "/run"])
def test_one_tmpfs_is_enough(client: docker.DockerClient, place: str) -> None:
    with running(client, **LOCKED_DOWN | {"tmpfs": {place: "size=64m,mode=1777"}, "user": "10001:0"}) as container:
        container.wait_ready()


def test_without_a_writable_place_one_line_says_so(client: docker.DockerClient) -> None:
    with running(client, **LOCKED_DOWN | {"tmpfs": {}}) as container:
        assert container.wait_ended() == 2
        (line,) = container.log.strip().splitlines()
        assert re.match(r"breadbox: error: no writable folder for the run directory .*--run-dir", line)


def test_only_the_declared_places_are_written(client: docker.DockerClient) -> None:
    with running(client, user="54321:0", cap_drop=["ALL"]) as container:
        container.wait_ready()
        assert container.ask("/v1/completions", completion(4))[0] == 200
        changes = [change["Path"] for change in container.docker.diff() or []]
        assert [path for path in changes if not re.match(r"/(run(/breadbox(/.*)?)?|tmp)$", path)] == []


def test_it_connects_to_nobody(client: docker.DockerClient) -> None:
    if os.geteuid() or not shutil.which("nsenter"):
        pytest.skip("counting packets in the container's network needs root")
    watched = client.containers.run(IMAGE, ["-c", "sleep infinity"], entrypoint="sh", detach=True)
    try:
        watched.reload()
        namespace = ["nsenter", "-t", str(watched.attrs["State"]["Pid"]), "-n"]
        rule = ["!", "-o", "lo", "-m", "conntrack", "--ctstate", "NEW"]
        subprocess.run([*namespace, "iptables", "-I", "OUTPUT", *rule], check=True)
        with running(client, network_mode=f"container:{watched.id}") as container:
            container.wait_ready()
            assert container.ask("/v1/completions", completion(8))[0] == 200
            container.run("breadbox", "health")
            container.docker.stop(timeout=60)
        assert _packets(namespace) == 0
        # The counter does count: somebody who connects is seen.
        watched.exec_run(["/opt/breadbox/venv/bin/python", "-c", _CONNECT])
        assert _packets(namespace) > 0
    finally:
        watched.remove(force=True)


_CONNECT = "import socket; s = socket.socket(); s.settimeout(0.2); s.connect(('192.0.2.1', 80))"


def _packets(namespace: list[str]) -> int:
    command = [*namespace, "iptables", "-L", "OUTPUT", "-v", "-x", "-n"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return int(lines[2].split()[0])


def test_the_image_says_the_same_as_the_tests(client: docker.DockerClient) -> None:
    config: dict[str, Any] = client.images.get(IMAGE).attrs["Config"]
    assert config["User"] == "10001:0"
    assert config["Entrypoint"] == ["breadbox"]
    assert config["Healthcheck"]["StartPeriod"] > 0
    labels = {name.rsplit(".", 1)[-1]: value for name, value in config["Labels"].items()}
    assert (labels["licenses"], labels["version"]) == ("Apache-2.0", __version__)
    assert not any("TOKEN" in word or "PROXY" in word.upper() for word in config["Env"])
