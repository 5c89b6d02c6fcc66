"""One `Library` for each instruction set that this CPU can run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.kernels.native.library import Library, load_library
from engine.kernels.native.targets import isas, runs_here


@pytest.fixture(params=[isa.name for isa in isas() if runs_here(isa)])
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    loaded = load_library(request.param)
    yield loaded
    loaded.set_num_threads(None)
