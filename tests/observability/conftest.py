"""A box with two API workers over the default model, a small one that speculates, a Prometheus that watches both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.box.conftest import SMALL
from tests.box.running_box import RunningBox, running_box
from tests.observability.load import MODEL
from tests.observability.prometheus import Prometheus, running_prometheus
from tests.tiny_models import make_tiny_model

_STARTED = frozenset({"box", "tiny", "drafting", "prometheus", "crowded"})
FLAGS = [*SMALL, "--api-workers", "2", "--show-hidden-metrics", "--log-stats-interval", "1", "--enable-log-requests"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark those that start a box."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and _STARTED & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.box)


@pytest.fixture(scope="session")
def box(shipped_model: Path) -> Iterator[RunningBox]:
    """A box that is ready."""
    with running_box(shipped_model, flags=FLAGS) as box:
        box.wait_ready()
        yield box


@pytest.fixture(scope="session")
def drafting(tiny: Path) -> Iterator[RunningBox]:
    """A second box of that name, which speculates."""
    speculation = '{"method": "ngram", "num_speculative_tokens": 3, "adaptive": false}'
    flags = ["--kv-cache-memory", "4MiB", "--max-num-seqs", "8", "--served-model-name", MODEL]
    with running_box(tiny, flags=[*flags, "--speculative-config", speculation]) as box:
        box.wait_ready()
        yield box


@pytest.fixture(scope="session")
def prometheus(box: RunningBox, drafting: RunningBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has scraped both boxes."""
    targets = [f"127.0.0.1:{one.port}" for one in (box, drafting)]
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), *targets) as prometheus:
        yield prometheus


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny baked model that is ready at once and knows nothing."""
    return make_tiny_model("llama", tmp_path_factory.mktemp("tiny")).baked
