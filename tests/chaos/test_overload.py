"""The short form of `make overload`: what is promised but the times, which depend on who else uses the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.overload import Report, percentile, run_overload


@pytest.mark.box
def test_who_cannot_be_served_is_told_so(shipped_model: Path) -> None:
    report = run_overload(shipped_model, seconds=6, say=print)
    print(report.describe())
    assert not report.failures
    assert set(report.statuses) <= {200, 429, 503}
    assert report.statuses[200] > 0
    assert report.refused_s
    assert len(report.first_token_s) == report.statuses[200]


def test_broken_promises_are_named() -> None:
    good = Report(rate=10, first_token_s=[1.0], refused_s=[0.1], probe_s=[0.1], before_s=0.5, after_s=0.5)
    good.statuses.update({200: 5, 503: 9})
    assert not good.problems
    good.statuses[500] += 1
    good.first_token_s.append(60)
    assert len(good.problems) == 2
    assert percentile([3, 1, 2], 50) == 2
    assert percentile([], 99) == 0
