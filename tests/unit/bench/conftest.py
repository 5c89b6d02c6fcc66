"""A fake server, and streams with times that are known to the digit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.bench.fake_server import FakeServer, running


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running() as fake:
        yield fake
