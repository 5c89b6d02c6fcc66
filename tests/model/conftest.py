"""Tiny models and their engines, made once a session; transformers kept quiet."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers

from appliance.bake import DEFAULT_MODEL
from engine.kernels.native.targets import is_built
from tests.conftest import _baked as bake_once
from tests.model.driver import Engine
from tests.tiny_models import TinyModel, make_tiny_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Spinning thread pools make runs on a busy machine crawl, and nothing here needs two."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """A tiny model by its name in `TINY_MODELS`."""
    return cache(lambda name: make_tiny_model(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="session", params=["reference", "cpu"])
def implementation(request: pytest.FixtureRequest) -> str:
    """The ops to use: what is promised in float32 holds for torch and for the C++ library."""
    if request.param == "cpu" and not is_built():
        pytest.skip("the C++ library is not built: python -m engine.kernels.native.build")
    return str(request.param)


@pytest.fixture(scope="session")
def tiny_engine(tiny: Callable[[str], TinyModel], implementation: str) -> Callable[[str], Engine]:
    """The engine of a tiny model by its name, in float32."""
    return cache(lambda name: Engine(tiny(name).baked, implementation))


@pytest.fixture(scope="session")
def baked_as(shipped_model: Path) -> Callable[[str], Path]:
    """The default model by the quantization to bake it with; "shipped": as `make run` bakes it."""

    def find(quantization: str) -> Path:
        if quantization == "shipped":
            return shipped_model
        return bake_once(f"{DEFAULT_MODEL}-{quantization}", quantization)

    return find


@pytest.fixture(scope="session")
def smollm2_engine(smollm2: Path, implementation: str) -> Engine:
    """The default model's engine in float32."""
    return Engine(smollm2, implementation, max_model_len=512, num_gpu_blocks_override=512)
