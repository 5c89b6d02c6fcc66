"""The image's tests run when they are asked for by name (`make test-image`): they need Docker and the image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.image.container import IMAGE, Container, running

FOLDER = Path(__file__).resolve().parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Not part of a plain run of all tests."""
    return None if any("tests/image" in str(word) for word in config.invocation_params.args) else True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before all others in a run of everything: they measure a start, and others leave boxes running to the end."""
    items.sort(key=lambda item: FOLDER not in item.path.parents)


@pytest.fixture(scope="session")
def client() -> Iterator[docker.DockerClient]:
    """The engine that DOCKER_HOST names. Without engine or image the tests fail: there is nothing to skip."""
    client = docker.from_env(timeout=180)
    client.images.get(IMAGE)
    yield client
    client.close()


@pytest.fixture(scope="module")
def box(client: docker.DockerClient) -> Iterator[Container]:
    """A container as `docker run` starts it, that is ready; shared by the tests that leave it as it was."""
    with running(client) as container:
        container.wait_ready()
        yield container
