"""Fixtures that every test folder may use."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from appliance.bake import DEFAULT_MODEL, DEFAULT_SOURCE, bake

MODELS = Path(__file__).resolve().parent.parent / ".cache" / "models"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The baked default model; baked by whichever test run comes first, the others wait for it."""
    folder = MODELS / DEFAULT_MODEL
    MODELS.mkdir(parents=True, exist_ok=True)
    with (MODELS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "manifest.json").exists():
            bake(DEFAULT_SOURCE, folder)
    return folder
