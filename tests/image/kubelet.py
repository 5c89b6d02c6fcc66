"""Plays kubelet for a Deployment's only container: its three probes, preStop, SIGTERM, grace.

What it leaves to a real cluster: scheduling, autoscalers, network policies, admission.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import docker
import httpx

from tests.image.container import SMALL, Container

_UNITS = {"Mi": "m", "Gi": "g"}


class Pod:
    """One pod; its events are (seconds since its creation, word)."""

    def __init__(self, client: docker.DockerClient, deployment: dict[str, Any]) -> None:
        self._client = client
        self._spec = deployment["spec"]["template"]["spec"]
        (self._container,) = self._spec["containers"]
        self._ports = {port["name"]: port["containerPort"] for port in self._container["ports"]}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_after, daemon=True)
        self.is_ready = threading.Event()
        self.restarts = 0
        self.events: list[tuple[float, str]] = []
        self._created_s = time.monotonic()
        self.container = Container(client.containers.run(**self._options()))

    def start(self) -> None:
        """Begin to probe."""
        self._thread.start()

    def _options(self) -> dict[str, Any]:
        security = self._container["securityContext"]
        memory = self._container["resources"]["limits"]["memory"]
        environment = {one["name"]: one["value"] for one in self._container["env"] if "value" in one}
        return {
            "image": self._container["image"],
            "command": self._container.get("args"),
            "name": f"breadbox-pod-{uuid.uuid4().hex[:8]}",
            "detach": True,
            "user": f"{self._spec['securityContext']['runAsUser']}:{self._spec['securityContext']['runAsGroup']}",
            "read_only": security["readOnlyRootFilesystem"],
            "cap_drop": security["capabilities"]["drop"],
            "security_opt": [] if security["allowPrivilegeEscalation"] else ["no-new-privileges"],
            "environment": environment | SMALL,
            "mem_limit": memory[:-2] + _UNITS[memory[-2:]],
            "tmpfs": {mount["mountPath"]: "mode=1777" for mount in self._container["volumeMounts"]},
            "healthcheck": {"test": ["NONE"]},  # kubelet knows nothing of it
        }

    def note(self, word: str) -> None:
        """Remember that something happened."""
        self.events.append((time.monotonic() - self._created_s, word))

    def words(self) -> list[str]:
        """What happened, in order."""
        return [word for _, word in self.events]

    def _passes(self, probe: dict[str, Any]) -> bool:
        get = probe["httpGet"]
        url = f"http://{self.container.address}:{self._ports[get['port']]}{get['path']}"
        try:
            return 200 <= httpx.get(url, timeout=probe.get("timeoutSeconds", 1)).status_code < 400
        except (httpx.HTTPError, StopIteration):
            return False

    def _look_after(self) -> None:
        while not self._ended.is_set():
            if not self._wait_started() or not self._watch():
                self._restart()

    def _wait_started(self) -> bool:
        probe = self._container["startupProbe"]
        for _ in range(probe["failureThreshold"]):
            if self._ended.is_set():
                return True
            if self._passes(probe):
                self.note("started")
                return True
            self._ended.wait(probe["periodSeconds"])
        self.note("startup failed")
        return False

    def _watch(self) -> bool:
        """Readiness and liveness, each by its own clock; False when the container must be started anew."""
        probes = {name: self._container[f"{name}Probe"] for name in ("readiness", "liveness")}
        due, failures = dict.fromkeys(probes, 0.0), dict.fromkeys(probes, 0)
        while not self._ended.wait(0.05):
            for name, probe in probes.items():
                if time.monotonic() < due[name]:
                    continue
                due[name] = time.monotonic() + probe["periodSeconds"]
                failures[name] = 0 if self._passes(probe) else failures[name] + 1
                has_failed = failures[name] >= probe["failureThreshold"]
                if name == "readiness":
                    self._set_ready(failures[name] == 0, has_failed)
                elif has_failed:
                    self.note("liveness failed")
                    return False
        return True

    def _set_ready(self, passed: bool, has_failed: bool) -> None:
        if passed and not self.is_ready.is_set():
            self.note("ready")
            self.is_ready.set()
        elif has_failed and self.is_ready.is_set():
            self.note("not ready")
            self.is_ready.clear()

    def _restart(self) -> None:
        self.is_ready.clear()
        self.restarts += 1
        self.container.docker.restart(timeout=self._spec["terminationGracePeriodSeconds"])
        self.note("restarted")

    def delete(self) -> int:
        """As `kubectl delete pod`: preStop, SIGTERM, and SIGKILL when the grace is over; returns the exit status."""
        grace_s = self._spec["terminationGracePeriodSeconds"]
        deadline_s = time.monotonic() + grace_s
        self._ended.set()
        self.note("terminating")
        status, output = self.container.docker.exec_run(self._container["lifecycle"]["preStop"]["exec"]["command"])
        self.note(f"preStop ended with {status}")
        assert status == 0, output.decode()
        self.container.docker.stop(timeout=max(2, int(deadline_s - time.monotonic())))
        self.note("stopped")
        return int(self.container.state["ExitCode"])

    def remove(self) -> None:
        """Whatever state it is in."""
        self._ended.set()
        self.container.docker.remove(force=True)
