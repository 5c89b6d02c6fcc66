"""What it costs to start and to wait: figures for the README, and limits that also a slow machine keeps.

`make test-image ARGS="-k budgets -s"` prints them.
"""

from __future__ import annotations

import json
import time

import docker
import httpx

from tests.image.container import Container, completion, patience, running

FIRST_TOKEN_WITHIN_S = 20.0  # a quarter of it on a machine that has nothing else to do
MAX_IDLE_BYTES = 1_500_000_000


def test_cold_start(client: docker.DockerClient) -> None:
    """`docker run` until the first token has come, with the image in the page cache; the best of three."""
    times = [_first_token_s(client) for _ in range(3)]
    print(f"\ncontainer start to first token: {', '.join(f'{seconds:.2f}' for seconds in times)} s")
    assert min(times) <= FIRST_TOKEN_WITHIN_S * patience()


def _first_token_s(client: docker.DockerClient) -> float:
    with running(client) as container:
        url = container.url
        while True:
            try:
                answer = httpx.post(f"{url}/v1/completions", json=completion(1), timeout=30)
            except httpx.HTTPError:
                answer = None
            if answer is not None and answer.status_code == 200:
                return time.monotonic() - container.started_s
            assert container.state["Running"], container.log
            time.sleep(0.02)


def test_idle_memory(box: Container) -> None:
    """Memory of all processes that nobody else shares (private pages), and what of the model is mapped beside it."""
    script = """
import json, pathlib
total = {"Pss": 0, "Rss": 0}
for file in pathlib.Path("/proc").glob("[0-9]*/smaps_rollup"):
    try:
        lines = dict(line.split(":", 1) for line in file.read_text().splitlines()[1:])
    except OSError:
        continue
    for name in total:
        total[name] += int(lines[name].split()[0]) * 1024
print(json.dumps(total))
"""
    figures = json.loads(box.run("/opt/breadbox/venv/bin/python", "-c", script))
    print(f"\nidle memory: {figures['Pss'] / 1e6:.0f} MB proportional, {figures['Rss'] / 1e6:.0f} MB resident")
    assert figures["Pss"] <= MAX_IDLE_BYTES
