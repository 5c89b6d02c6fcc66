"""A browser and a box of the default model for each module of tests; they all start real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.box.running_box import RunningBox, running_box
from tests.page.browser import OpenPage, open_page, running_browser
from tests.tiny_models import make_tiny_model

SMALL = ["--kv-cache-memory", "512MiB"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As in `tests.box`."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.box)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Started once a module, and stopped before tests of asyncio follow."""
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def box(shipped_model: Path) -> Iterator[RunningBox]:
    """A box of the default model that is ready."""
    with running_box(shipped_model, flags=SMALL) as box:
        box.wait_ready()
        yield box


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny baked model that is ready at once and knows nothing."""
    return make_tiny_model("llama", tmp_path_factory.mktemp("tiny")).baked


@pytest.fixture
def opened(browser: Browser, box: RunningBox) -> Iterator[OpenPage]:
    """The page of the shared box in a fresh profile, ready."""
    with open_page(browser) as opened:
        opened.open(box.url)
        opened.expect_status("Ready")
        yield opened
