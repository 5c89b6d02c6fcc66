"""The C++ library is built once for the run, for this CPU, as `make` and the image build do."""

from __future__ import annotations

import shutil

import pytest

from engine.kernels.native.build import build_all
from engine.kernels.native.targets import isas, runs_here


@pytest.fixture(scope="session", autouse=True)
def _native_library() -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    build_all([isa.name for isa in isas() if runs_here(isa)])
