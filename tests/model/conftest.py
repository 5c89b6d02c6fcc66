"""Tiny models and their engines, made once a session; transformers kept quiet."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers

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


@pytest.fixture(scope="session")
def tiny_engine(tiny: Callable[[str], TinyModel]) -> Callable[[str], Engine]:
    """Its engine, with the reference ops in float32."""
    return cache(lambda name: Engine(tiny(name).baked))


@pytest.fixture(scope="session")
def smollm2_engine(smollm2: Path) -> Engine:
    """The default model's engine, with the reference ops in float32."""
    return Engine(smollm2, max_model_len=512, num_gpu_blocks_override=512)
