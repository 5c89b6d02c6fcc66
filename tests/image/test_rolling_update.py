"""Two boxes behind a second nginx are replaced one after the other under load: every stream ends as it should."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import docker
import httpx
import pytest

from tests.image.container import IMAGE, Container, completion, running
from tests.image.streams import Stream, check_complete, start_streams

NUM_STREAMS = 50
BOX = {"BREADBOX_SHUTDOWN_TIMEOUT": "240", "BREADBOX_MAX_MODEL_LEN": "1024", "BREADBOX_MAX_NUM_SEQS": "32"}
CONFIG = """
pid /tmp/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy; fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;
    upstream boxes {{ least_conn; {servers} }}
    server {{
        listen 8080;
        location / {{
            proxy_pass http://boxes;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_read_timeout 1h;
        }}
    }}
}}
"""


class Balancer:
    """A stock nginx (buffering is on) in front of some boxes."""

    def __init__(self, container: Container, folder: Path) -> None:
        self._container = container
        self._folder = folder

    @property
    def url(self) -> str:
        return f"http://{self._container.address}:8080"

    def use(self, *boxes: Container) -> None:
        """From now on new requests go to these."""
        _write(self._folder, *boxes)
        self._container.run("nginx", "-e", "stderr", "-c", "/balancer/nginx.conf", "-s", "reload")


def _write(folder: Path, *boxes: Container) -> None:
    servers = " ".join(f"server {box.address}:8000;" for box in boxes)
    (folder / "nginx.conf").write_text(CONFIG.format(servers=servers))


@contextlib.contextmanager
def balancing(client: docker.DockerClient, folder: Path, *boxes: Container) -> Iterator[Balancer]:
    """Start the second nginx; it is the one of the image."""
    folder.chmod(0o755)
    _write(folder, *boxes)
    container = Container(
        client.containers.run(
            IMAGE,
            ["-e", "stderr", "-c", "/balancer/nginx.conf", "-g", "daemon off;"],
            entrypoint="nginx",
            volumes={str(folder): {"bind": "/balancer", "mode": "ro"}},
            healthcheck={"test": ["NONE"]},
            detach=True,
        )
    )
    try:
        balancer = Balancer(container, folder)
        container.wait_until(lambda: _answers(balancer.url), 30)
        yield balancer
    finally:
        container.docker.remove(force=True)


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    return False


class Caller(threading.Thread):
    """Short requests, one after another, as long as the update goes on."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.ended = threading.Event()
        self.statuses: list[int] = []
        self.errors: list[str] = []

    def run(self) -> None:
        """Count what comes."""
        while not self.ended.wait(0.3):
            try:
                response = httpx.post(f"{self._url}/v1/completions", json=completion(1), timeout=120)
                self.statuses.append(response.status_code)
            except httpx.HTTPError as error:
                self.errors.append(repr(error))


def replace(old: Container, keep: Container, new: Container, balancer: Balancer) -> None:
    """What a rolling update does: the new one is ready, the old one gets no new requests, drains and stops."""
    new.wait_ready()
    balancer.use(keep, new)
    old.run("breadbox", "drain", "--settle", "2", "--timeout", "240")
    old.docker.stop(timeout=280)
    assert old.state["ExitCode"] == 0, old.log


@pytest.mark.exact  # a stream that is cut is a fault, however seldom
@pytest.mark.timeout(900)
def test_fifty_streams_survive(client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("balancer")
    for parent in (folder.parent, folder.parent.parent):
        os.chmod(parent, 0o755)  # the container's user is another one
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(running(client, environment=BOX)) for _ in range(2))
        first.wait_ready()
        second.wait_ready()
        balancer = stack.enter_context(balancing(client, folder, first, second))
        streams: list[Stream] = start_streams(balancer.url, NUM_STREAMS, 100)
        running_on = [box.metric("vllm:num_requests_running") for box in (first, second)]
        assert all(running_on), running_on
        caller = Caller(balancer.url)
        caller.start()
        third = stack.enter_context(running(client, environment=BOX))
        replace(first, second, third, balancer)
        fourth = stack.enter_context(running(client, environment=BOX))
        replace(second, third, fourth, balancer)
        check_complete(streams)
        caller.ended.set()
        caller.join(120)
        assert caller.errors == []
        assert set(caller.statuses) == {200}
        print(f"{NUM_STREAMS} streams complete, {len(caller.statuses)} requests beside them")
