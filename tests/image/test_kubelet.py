"""The shipped Deployment under a kubelet of our own: its probes and its hook fit the real container."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import docker
import pytest

from tests.image.container import patience
from tests.image.kubelet import Pod
from tests.image.streams import check_complete, start_streams
from tests.k8s.manifests import of_kind

STARTED_WITHIN_S = 60.0


@pytest.fixture
def deployment() -> dict[str, Any]:
    (deployment,) = of_kind("cpu", "Deployment")
    return copy.deepcopy(deployment)


@pytest.fixture
def pod(client: docker.DockerClient, deployment: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[Pod]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    for name, fields in getattr(request, "param", {}).items():
        container[name].update(fields)
    pod = Pod(client, deployment)
    pod.start()
    try:
        assert pod.is_ready.wait(STARTED_WITHIN_S * patience()), (pod.events, pod.container.log)
        yield pod
    finally:
        pod.remove()


def test_start_drain_and_stop(pod: Pod) -> None:
    assert pod.words() == ["started", "ready"]
    streams = start_streams(pod.container.url, 4, 60)
    assert pod.delete() == 0, pod.container.log
    check_complete(streams)
    assert pod.words() == ["started", "ready", "terminating", "preStop ended with 0", "stopped"]
    assert pod.restarts == 0
    print(pod.events)


# As in the manifest, but quicker: there, a box may be silent for a minute.
@pytest.mark.parametrize(
    "pod", [{"livenessProbe": {"periodSeconds": 1, "timeoutSeconds": 3, "failureThreshold": 4}}], indirect=True
)
def test_a_box_that_answers_nothing_is_started_anew(pod: Pod) -> None:
    pids = [process["pid"] for process in pod.container.find("gunicorn")]
    script = f"import os, signal; [os.kill(pid, signal.SIGSTOP) for pid in {pids}]"
    pod.container.run("/opt/breadbox/venv/bin/python", "-c", script)
    pod.container.wait_until(lambda: pod.restarts == 1, 200)
    assert pod.is_ready.wait(STARTED_WITHIN_S * patience()), pod.events
    words = pod.words()
    assert "liveness failed" in words
    assert words[-3:] == ["restarted", "started", "ready"]


# The manifest's own limits: a lost engine is not ready, and is not a reason to start the box anew.
def test_a_killed_engine_is_no_reason_to_start_anew(pod: Pod) -> None:
    pod.container.kill(pod.container.find("engine", "--index 0")[0]["pid"])
    pod.container.wait_until(lambda: pod.container.ask("/readyz")[0] == 200, 60)
    assert pod.restarts == 0
    assert "liveness failed" not in pod.words()
