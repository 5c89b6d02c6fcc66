"""A container of the image under test, driven over Docker's API; nothing of the checkout runs in it."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import docker
import httpx
from docker.errors import APIError
from docker.models.containers import Container as DockerContainer

IMAGE = os.environ.get("BREADBOX_TEST_IMAGE", "breadbox:cpu")
MODEL = "SmolLM2-135M-Instruct"
READY_WITHIN_S = 90.0
# All restrictions together, and a user that no image knows.
LOCKED_DOWN: dict[str, Any] = {
    **{"user": "12345:0", "read_only": True, "tmpfs": {"/tmp": "size=64m,mode=1777"}, "cap_drop": ["ALL"]},
    **{"security_opt": ["no-new-privileges"], "network_mode": "none", "shm_size": "1m"},
    **{"mem_limit": "3g", "pids_limit": 128},
}
SMALL = {"BREADBOX_KV_CACHE_MEMORY": "512MiB"}

# Runs in the container, which has neither curl nor ps: asks the box for something, or lists its processes.
_ASK = """
import json, sys, urllib.request, urllib.error
path, body = sys.argv[1], sys.argv[2].encode() or None
request = urllib.request.Request("http://127.0.0.1:8000" + path, body, {"Content-Type": "application/json"})
try:
    answer = urllib.request.urlopen(request, timeout=60)
except urllib.error.HTTPError as error:
    answer = error
print(json.dumps([answer.status, answer.read().decode()]))
"""
_LIST = """
import json, pathlib
found = []
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        words = (folder / "cmdline").read_bytes().replace(b"\\0", b" ").decode().strip()
        status = dict(line.split(":\\t", 1) for line in (folder / "status").read_text().splitlines())
    except OSError:
        continue
    fields = {"pid": int(folder.name), "command": words, "state": status["State"][0], "uid": status["Uid"].split()}
    found.append({**fields, "parent": int(status["PPid"]), "capabilities": status["CapEff"].strip()})
print(json.dumps(sorted(found, key=lambda one: one["pid"])))
"""


class Container:
    """One container, started and not yet ready."""

    def __init__(self, container: DockerContainer) -> None:
        self.docker = container
        self.started_s = time.monotonic()

    @property
    def log(self) -> str:
        """Everything it said."""
        return bytes(self.docker.logs()).decode(errors="replace")

    @property
    def address(self) -> str:
        """Its address on the engine's own bridge."""
        self.docker.reload()
        networks = self.docker.attrs["NetworkSettings"]["Networks"].values()
        return str(next(network["IPAddress"] for network in networks if network["IPAddress"]))

    @property
    def url(self) -> str:
        """Where its proxy listens, seen from the engine's machine."""
        return f"http://{self.address}:8000"

    @property
    def published_url(self) -> str:
        """The port that was published on this machine."""
        self.docker.reload()
        (port, *_) = self.docker.attrs["NetworkSettings"]["Ports"]["8000/tcp"]
        return f"http://127.0.0.1:{port['HostPort']}"

    @property
    def state(self) -> dict[str, Any]:
        """As `docker inspect` has it."""
        self.docker.reload()
        return dict(self.docker.attrs["State"])

    def run(self, *command: str, **options: Any) -> str:
        """The output of a command in it, which must succeed."""
        status, output = self.docker.exec_run(list(command), **options)
        assert status == 0, output.decode(errors="replace")
        return str(output.decode())

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        """Status and body of a request that the box gets from inside; 0 where nobody answers."""
        text = json.dumps(body) if body else ""
        try:
            status, output = self.docker.exec_run(["/opt/breadbox/venv/bin/python", "-c", _ASK, path, text])
        except APIError as error:  # the container doesn't run
            return 0, str(error)
        if status:
            return 0, output.decode(errors="replace")
        code, answer = json.loads(output)
        return int(code), str(answer)

    def processes(self) -> list[dict[str, Any]]:
        """The processes in it, but for the one that lists them and the dead ones."""
        found = json.loads(self.run("/opt/breadbox/venv/bin/python", "-c", _LIST))
        return [one for one in found if "import json" not in one["command"] and one["state"] not in "ZX"]

    def find(self, *words: str) -> list[dict[str, Any]]:
        """Those whose command has all these words."""
        return [one for one in self.processes() if all(word in one["command"] for word in words)]

    def kill(self, pid: int) -> None:
        """kill -9, as any user in it could."""
        self.run("/opt/breadbox/venv/bin/python", "-c", f"import os; os.kill({pid}, 9)")

    def metric(self, name: str, label: str = "") -> float:
        """The sum of a metric's samples."""
        _, text = self.ask("/metrics")
        samples = [line for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name and label in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples)

    def wait_ready(self) -> float:
        """Until it would serve; returns the seconds since its start."""
        self.wait_until(lambda: self.ask("/readyz")[0] == 200, READY_WITHIN_S)
        return time.monotonic() - self.started_s

    def wait_until(self, condition: Callable[[], bool], timeout_s: float, pause_s: float = 0.1) -> None:
        """Look again and again, as long as it lives."""
        deadline = time.monotonic() + timeout_s * patience()
        while not condition():
            assert self.state["Running"], f"it ended with {self.state['ExitCode']}:\n{self.log}"
            assert time.monotonic() < deadline, f"not within {timeout_s} s:\n{self.log}"
            time.sleep(pause_s)

    def wait_ended(self, timeout_s: float = 60.0) -> int:
        """Its exit status."""
        return int(self.docker.wait(timeout=timeout_s * patience())["StatusCode"])


def patience() -> float:
    """Limits are those of a machine that has nothing else to do; on a busy one they are longer."""
    return max(1.0, min(6.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


@contextlib.contextmanager
def running(client: docker.DockerClient, *command: str, **options: Any) -> Iterator[Container]:
    """Start a container of the image and remove it."""
    options = {"image": IMAGE, "name": f"breadbox-test-{uuid.uuid4().hex[:8]}", "detach": True, **options}
    options["environment"] = SMALL | options.get("environment", {})
    container = Container(client.containers.run(command=list(command) or None, **options))
    try:
        yield container
    finally:
        container.docker.remove(force=True, v=True)


def completion(max_tokens: int, **fields: Any) -> dict[str, Any]:
    """A request for exactly that many tokens."""
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": max_tokens, "temperature": 0}
    return body | {"logit_bias": {"0": -100, "2": -100}} | fields


def is_ready(url: str) -> bool:
    """Whether /readyz says so; False where nobody answers."""
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    return False
