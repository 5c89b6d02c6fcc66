"""The short form of `make soak`, with a tiny model; SOAK_MINUTES makes it longer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.memory import MIB, Growth, Held, Sample
from tests.chaos.soak import rounds_for, rounds_of, run_soak
from tests.tiny_models import make_tiny_model

MINUTES = float(os.environ.get("SOAK_MINUTES", "0.25"))


@pytest.mark.box
@pytest.mark.timeout(60 * MINUTES + 1200)
def test_nothing_grows(tmp_path: Path) -> None:
    model = make_tiny_model("llama", tmp_path).baked
    report = run_soak(model, rounds_for(MINUTES), seed=1, say=print)
    print(report.describe())
    assert report.is_clean, report.describe()
    assert report.statuses[200] > 0
    assert report.num_left > 0


def test_rounds_are_as_many_requests_or_as_long() -> None:
    assert sum(len(list(todo)) for todo in rounds_of(100)) >= 100
    assert len(list(rounds_for(0))) == len(list(rounds_of(0)))
    assert not any(list(todo) for todo in rounds_for(0))


def _growth(pss: list[int], fds: int = 0, pid: int = 1) -> Growth:
    held = [Held(pid if index else 1, size, size, 10 + fds * index, 3) for index, size in enumerate(pss)]
    return Growth([Sample(100 * index, {"engine": one}, 0) for index, one in enumerate(held, 1)])


def test_growth_is_found_and_warming_up_is_none() -> None:
    assert not _growth([10 * MIB] * 12).problems(MIB)
    assert not _growth([MIB, 5 * MIB, 9 * MIB, *[10 * MIB] * 9]).problems(MIB)
    assert _growth([index * MIB for index in range(12)]).problems(MIB)
    assert _growth([10 * MIB] * 12, fds=3).problems(MIB)
    assert _growth([10 * MIB] * 12, pid=2).problems(MIB)
    assert _growth([100 * index for index in range(12)]).slope("engine", lambda held: held.pss_bytes) == 1.0
