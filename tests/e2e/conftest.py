"""One real box for all of these tests, and a second one with unusual settings for those that need them.

With BOX_URL (and BOX_KEY) in the environment the tests talk to a box that already runs, such as a container; those that
look at its processes or need the second box are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.box.conftest import SMALL
from tests.box.running_box import RunningBox, running_box
from tests.e2e.caller import ALIAS, KEY, MODEL, ORIGIN, Caller

TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
FLAGS = [
    *SMALL,
    *TOOLS,
    *("--api-key", KEY, "--api-key", "second-key"),
    *("--api-workers", "2"),
    *("--served-model-name", MODEL, ALIAS),
    *("--allowed-origins", ORIGIN),
    "--enable-tokenizer-info-endpoint",
]
# One request at a time, in small steps; an engine that is lost is not waited for.
ODD_FLAGS = [
    *("--kv-cache-memory", "256MiB", "--max-model-len", "1024"),
    *("--max-num-seqs", "1", "--max-num-batched-tokens", "64"),
    *("--max-logprobs", "-1", "--max-prompts", "3", "--max-n", "5"),
    *("--max-resumes", "0", "--engine-wait", "0"),
    *("--sse-keep-alive-interval", "0.3"),
    *("--middleware", "tests.api.plugins.Stamp"),
    *("--trust-request-chat-template", "--return-tokens-as-token-ids"),
    *("--api-workers", "1"),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs a real box."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.box)


@pytest.fixture(scope="session")
def real_box(shipped_model: Path) -> Iterator[RunningBox | None]:
    """The box's processes; None where somebody else runs it."""
    if "BOX_URL" in os.environ:
        yield None
        return
    with running_box(shipped_model, flags=FLAGS) as box:
        box.wait_ready()
        yield box


@pytest.fixture(scope="session")
def box(real_box: RunningBox | None) -> Iterator[Caller]:
    """A client of the box."""
    url, key = (real_box.url, KEY) if real_box else (os.environ["BOX_URL"], os.environ.get("BOX_KEY"))
    with closing(Caller(url, key)) as caller:
        yield caller


@pytest.fixture
def processes(real_box: RunningBox | None) -> RunningBox:
    """The box's processes."""
    if real_box is None:
        pytest.skip("somebody else runs the box")
    return real_box


@pytest.fixture(scope="session")
def odd_processes(shipped_model: Path) -> Iterator[RunningBox]:
    """A box with `ODD_FLAGS` and without a key."""
    if "BOX_URL" in os.environ:
        pytest.skip("needs a box of its own")
    with running_box(shipped_model, flags=ODD_FLAGS) as box:
        box.wait_ready()
        yield box


@pytest.fixture(scope="session")
def odd_box(odd_processes: RunningBox) -> Iterator[Caller]:
    """A client of it."""
    with closing(Caller(odd_processes.url, key=None)) as caller:
        yield caller


@pytest.fixture(scope="module", autouse=True)
def canary(box: Caller) -> Iterator[None]:
    """Whatever a module's tests did to the box, it answers as before."""
    box.check_canary()
    yield
    box.check_canary()
