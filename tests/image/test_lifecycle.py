"""Stopping, dying and coming back, in the container: nobody is cut, and what can't go on says why."""

from __future__ import annotations

import signal
import time

import docker
import httpx
import pytest

from tests.image.container import MODEL, Container, completion, is_ready, patience, running
from tests.image.streams import Stream, check_complete, start_streams

READY_AGAIN_S = 30.0  # a third of it on a machine that has nothing else to do
VICTIMS = {
    "engine": ("engine", "--index 0"),
    "gunicorn": ("gunicorn",),
    "worker": ("gunicorn",),
    "nginx": ("nginx: master",),
    "nginx-worker": ("nginx: worker",),
}
COUNTED_AS = {
    "engine": "engine-0",
    "gunicorn": "api",
    "worker": "api-worker",
    "nginx": "nginx",
    "nginx-worker": "nginx-worker",
}


def wait_for(container: Container, url: str, path: str, status: int, timeout_s: float) -> None:
    """Until a probe has this status."""
    container.wait_until(lambda: httpx.get(url + path, timeout=10).status_code == status, timeout_s)


def find_victim(container: Container, victim: str) -> int:
    """The process; of nginx's workers one that the running master has started, none that is finishing."""
    if victim != "nginx-worker":
        return int(container.find(*VICTIMS[victim])[-1 if victim == "worker" else 0]["pid"])

    def workers() -> list[int]:
        masters = {one["pid"] for one in container.find(*VICTIMS["nginx"])}
        return [one["pid"] for one in container.find(*VICTIMS[victim]) if one["parent"] in masters]

    container.wait_until(lambda: bool(workers()), 30)
    return workers()[-1]


@pytest.mark.parametrize("victim", VICTIMS)
def test_what_is_killed_comes_back(box: Container, victim: str) -> None:
    pid = find_victim(box, victim)
    counter = f'program="{COUNTED_AS[victim]}"'
    before = box.metric("breadbox:restarts_total", counter)
    started_s = time.monotonic()
    box.kill(pid)

    def is_back() -> bool:
        return pid not in [one["pid"] for one in box.find(*VICTIMS[victim])] and (
            box.ask("/v1/completions", completion(2))[0] == 200 and box.ask("/readyz")[0] == 200
        )

    box.wait_until(is_back, 60)
    seconds = time.monotonic() - started_s
    print(f"{victim}: ready again after {seconds:.1f} s")
    assert seconds <= READY_AGAIN_S * patience()
    assert box.state["Running"]
    assert box.docker.attrs["RestartCount"] == 0
    box.wait_until(lambda: box.metric("breadbox:restarts_total", counter) > before, 30)  # looked at once a second


def test_a_killed_supervisord_ends_the_container_with_the_reason(client: docker.DockerClient) -> None:
    with running(client) as container:
        container.wait_ready()
        container.kill(container.find("supervisor.supervisord")[0]["pid"])
        assert container.wait_ended() == 1
        assert "breadbox: error: supervisord ended unexpectedly" in container.log.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("environment", "command", "reason"),
    [
        ({"BREADBOX_KV_CACHE_MEMORY": "1k"}, (), "kv_cache_memory"),
        ({}, ("serve", "/nowhere"), "/nowhere"),
        ({"BREADBOX_PROT": "8000"}, (), "BREADBOX_PROT"),
    ],
    ids=["engine", "model", "setting"],
)
def test_what_cannot_start_ends_with_the_reason(
    client: docker.DockerClient, environment: dict[str, str], command: tuple[str, ...], reason: str
) -> None:
    with running(client, *command, environment=environment) as container:
        assert container.wait_ended(90) != 0
        last = container.log.strip().splitlines()[-1]
        assert last.startswith("breadbox: error: ")
        assert reason in last


def test_too_little_memory_is_said_before_the_start(client: docker.DockerClient) -> None:
    with running(client, mem_limit="256m", memswap_limit="256m") as container:
        assert container.wait_ended() == 2
        assert "do not fit into the" in container.log


def test_b47_streams_finish_after_sigterm(client: docker.DockerClient) -> None:
    with running(client, environment={"BREADBOX_SHUTDOWN_TIMEOUT": "120", "BREADBOX_MAX_NUM_SEQS": "4"}) as container:
        container.wait_ready()
        url = container.url
        # Five are queued: not more than four run at once.
        streams = start_streams(url, 4, 150) + [_started(url, 20) for _ in range(5)]
        container.docker.kill(signal="SIGTERM")
        wait_for(container, url, "/readyz", 503, 30)
        assert httpx.get(f"{url}/livez", timeout=10).status_code == 200
        refused = httpx.post(f"{url}/v1/completions", json=completion(2), timeout=30)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        container.docker.kill(signal="SIGTERM")  # changes nothing
        check_complete(streams[:4])
        for stream in streams[4:]:
            stream.join(120)
            assert stream.error is None, stream.describe()
            assert stream.is_complete or stream.status == 503, stream.describe()
        assert container.wait_ended() == 0, container.log


def _started(url: str, max_tokens: int) -> Stream:
    stream = Stream(url, max_tokens)
    stream.start()
    time.sleep(0.05)  # so that it is on its way before the signal
    return stream


def test_b47_past_the_grace_an_error_event_and_done(client: docker.DockerClient) -> None:
    with running(client, environment={"BREADBOX_SHUTDOWN_TIMEOUT": "1"}) as container:
        container.wait_ready()
        streams = start_streams(container.url, 3, 4000)
        container.docker.stop(timeout=60)
        for stream in streams:
            stream.join(60)
            assert stream.error is None, stream.describe()
            assert stream.events[-1] == "[DONE]"
            assert '"error"' in stream.events[-2]
        assert container.state["ExitCode"] == 0


def test_a_stop_while_starting(client: docker.DockerClient) -> None:
    with running(client) as container:
        container.wait_until(lambda: "starting" in container.log, 30)
        container.docker.kill(signal=signal.SIGTERM)
        assert container.wait_ended() == 0


def test_orphans_are_reaped(box: Container) -> None:
    script = "import os; os.fork() or (os.setsid(), os.fork() and os._exit(0), os._exit(0))"
    for _ in range(5):
        box.docker.exec_run(["/opt/breadbox/venv/bin/python", "-c", script])
    count = (
        'import pathlib; print(sum("State:\\tZ" in f.read_text() for f in pathlib.Path("/proc").glob("[0-9]*/status")))'
    )
    box.wait_until(lambda: box.run("/opt/breadbox/venv/bin/python", "-c", count).strip() == "0", 20)


def test_drain_command(client: docker.DockerClient) -> None:
    with running(client) as container:
        container.wait_ready()
        streams = start_streams(container.url, 2, 60)
        assert "nothing runs" in container.run("breadbox", "drain", "--settle", "1", "--timeout", "100")
        check_complete(streams)
        assert not is_ready(container.url)
        assert container.ask("/v1/completions", completion(2, model=MODEL))[0] == 200
        container.run("breadbox", "drain", "--undo")
        assert is_ready(container.url)
