"""One box over the default model, shared by all tests that leave it as it was; and tiny models for the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.box.proxy import short_dir
from tests.box.running_box import RunningBox, running_box
from tests.tiny_models import make_tiny_model

SMALL = ["--kv-cache-memory", "768MiB"]  # of blocks for the default model; quick to allocate


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder starts real processes."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.box)


@pytest.fixture(scope="session")
def box(shipped_model: Path) -> Iterator[RunningBox]:
    """A box that is ready."""
    with running_box(shipped_model, flags=SMALL) as box:
        box.wait_ready()
        yield box


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny baked model that is ready at once and knows nothing."""
    return make_tiny_model("llama", tmp_path_factory.mktemp("tiny")).baked


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for sockets."""
    with short_dir() as path:
        yield path
