"""B46: the probes tell the truth from the first moment to the last, and Docker's own health check agrees."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import docker
import httpx

from tests.image.container import Container, completion, patience, running
from tests.image.streams import check_complete, start_streams

PROBES = ("/livez", "/startupz", "/readyz", "/health")
SLOW_PROBE_S = 5.0  # what the manifests and the image allow


def test_b46_from_start_to_ready(client: docker.DockerClient) -> None:
    with running(client) as container:
        url, seen = container.url, []
        while not seen or seen[-1]["/readyz"][0] != 200:
            seen.append({path: _probe(url, path) for path in PROBES})
            assert time.monotonic() - container.started_s < 90 * patience(), container.log
            time.sleep(0.05)
        answered = [look for look in seen if look["/readyz"][0]]
        assert all(look["/readyz"][0] in (200, 503) for look in answered)
        assert any(look["/livez"][0] == 200 and look["/readyz"][0] == 503 for look in answered)
        loading = [look["/startupz"][2]["models"][0] for look in answered if look["/startupz"][2].get("models")]
        assert {"phase", "percent", "seconds"} <= set(loading[0])
        assert all(look["/readyz"][1].get("retry-after") for look in answered if look["/readyz"][0] == 503)
        # Ready means that a token can be had, at once.
        assert container.ask("/v1/completions", completion(1))[0] == 200
        container.wait_until(lambda: container.state["Health"]["Status"] == "healthy", 30)


def _probe(url: str, path: str) -> tuple[int, dict[str, str], Any]:
    try:
        response = httpx.get(url + path, timeout=5)
    except httpx.HTTPError:
        return 0, {}, {}
    text = response.text
    return response.status_code, dict(response.headers), json.loads(text) if text else {}


def test_b46_a_hanging_engine(client: docker.DockerClient) -> None:
    with running(client) as container:
        container.wait_ready()
        pid = container.find("engine", "--index 0")[0]["pid"]
        python = "/opt/breadbox/venv/bin/python"
        container.run(python, "-c", f"import os, signal; os.kill({pid}, signal.SIGSTOP)")
        container.wait_until(lambda: container.ask("/readyz")[0] == 503, 30)
        assert container.ask("/livez")[0] == 200
        status, output = container.docker.exec_run(["breadbox", "health"])
        assert (status, b"503" in output) == (1, True), output
        container.run(python, "-c", f"import os, signal; os.kill({pid}, signal.SIGCONT)")
        container.wait_until(lambda: container.ask("/readyz")[0] == 200, 60)
        assert container.ask("/v1/completions", completion(1))[0] == 200


def test_b46_a_saturated_box_is_healthy(box: Container) -> None:
    slow: list[tuple[str, float]] = []
    ended = threading.Event()

    def poll() -> None:
        while not ended.is_set():
            for path in ("/livez", "/readyz"):
                started_s = time.monotonic()
                status = httpx.get(box.url + path, timeout=30).status_code
                seconds = time.monotonic() - started_s
                if status != 200 or seconds > SLOW_PROBE_S * patience():
                    slow.append((f"{path} {status}", seconds))
            time.sleep(0.2)

    prober = threading.Thread(target=poll)
    prober.start()
    try:
        check_complete(start_streams(box.url, 50, 20))
    finally:
        ended.set()
        prober.join()
    assert slow == []
