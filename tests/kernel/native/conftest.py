"""One `Library` for each instruction set that this CPU can run.

With ``--sanitize`` the builds are those of ``build --sanitize``, whose run time has to be in the process first::

    LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
        pytest tests/kernel/native --sanitize -s -k "amx or avx512 or avx2 or portable or packing"
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from engine.kernels.native import library as library_module
from engine.kernels.native.library import Library, load_library
from engine.kernels.native.targets import isas, library_path, runs_here


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sanitize", action="store_true", help="use the CPU kernels built with sanitizers")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--sanitize", default=False):
        library_module.library_path = partial(library_path, sanitize=True)  # type: ignore[assignment]


@pytest.fixture(params=[isa.name for isa in isas() if runs_here(isa)])
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    loaded = load_library(request.param)
    yield loaded
    loaded.set_num_threads(None)


@pytest.fixture
def tiles_and_vectors() -> tuple[Library, Library]:
    """The build for tile registers and the best one without."""
    with_tiles = next((isa for isa in isas() if isa.uses_tiles), None)
    without = next(isa for isa in isas() if not isa.uses_tiles)
    if with_tiles is None or not runs_here(with_tiles):
        pytest.skip("needs a CPU with AMX")
    return load_library(with_tiles.name), load_library(without.name)
