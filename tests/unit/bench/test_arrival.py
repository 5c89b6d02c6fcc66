"""Arrivals follow their seed, their rate and their shape."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from appliance.bench.arrival import Arrival, RampUp
from appliance.errors import SettingsError


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise([0.0, *times])]


def test_all_at_once() -> None:
    assert Arrival().times(3, 0) == [0.0, 0.0, 0.0]


def test_same_seed_same_times() -> None:
    arrival = Arrival(4.0, 0.5)
    assert arrival.times(50, 7) == arrival.times(50, 7)
    assert arrival.times(50, 7) != arrival.times(50, 8)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_rate_and_shape(burstiness: float) -> None:
    times = Arrival(10.0, burstiness).times(5000, 1)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(500.0)
    # A gamma distribution's standard deviation over its mean is one over the root of its shape.
    assert statistics.pstdev(gaps(times)) / statistics.fmean(gaps(times)) == pytest.approx(
        1 / math.sqrt(burstiness), rel=0.1
    )


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_ramp_up(strategy: str) -> None:
    ramp_up = RampUp(strategy, 1.0, 16.0)
    assert (ramp_up.rate(0.0), ramp_up.rate(1.0)) == (1.0, 16.0)
    assert ramp_up.rate(0.5) == (8.5 if strategy == "linear" else 4.0)
    between = gaps(Arrival(burstiness=100.0, ramp_up=ramp_up).times(200, 3))
    assert statistics.fmean(between[:20]) > 3 * statistics.fmean(between[-20:])


def test_linear_ramp_up_may_start_at_zero() -> None:
    assert len(Arrival(ramp_up=RampUp("linear", 0.0, 2.0)).times(4, 0)) == 4
    with pytest.raises(SettingsError):
        RampUp("exponential", 0.0, 2.0)
