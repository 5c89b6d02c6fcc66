"""When requests arrive: at once, at a rate with more or less of a clump, or at a rate that climbs."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from appliance.errors import SettingsError


@dataclass(frozen=True)
class RampUp:
    """The rate goes from one figure (requests/s) to another over the run; ``strategy`` is linear or exponential."""

    strategy: str
    start_rps: float
    end_rps: float

    def __post_init__(self) -> None:
        lowest = 0.0 if self.strategy == "linear" else math.ulp(0.0)
        if self.start_rps < lowest or self.end_rps <= 0:
            raise SettingsError(["--ramp-up-start-rps and --ramp-up-end-rps: rates must be above 0"])

    def rate(self, progress: float) -> float:
        """The rate when this share (0 … 1) of the requests has been sent."""
        if self.strategy == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        return self.start_rps * float((self.end_rps / self.start_rps) ** progress)


@dataclass(frozen=True)
class Arrival:
    """``request_rate`` in requests/s, infinite for all at once. Gaps follow a gamma distribution whose shape is
    ``burstiness``: 1 makes a Poisson process, less makes clumps, more makes it even.
    """

    request_rate: float = math.inf
    burstiness: float = 1.0
    ramp_up: RampUp | None = None

    def times(self, count: int, seed: int) -> list[float]:
        """Seconds from the start for each of `count` requests. The same seed gives the same times.

        At a constant rate the last request comes at count / rate exactly, whatever the draw, so that runs with
        different seeds can be compared.
        """
        rng = random.Random(seed)  # noqa: S311 - traffic, not secrets
        if self.ramp_up is None and math.isinf(self.request_rate):
            return [0.0] * count
        rates = [self._rate(index / max(count - 1, 1)) for index in range(count)]
        times, now_s = [], 0.0
        for rate in rates:
            now_s += rng.gammavariate(self.burstiness, 1 / (rate * self.burstiness)) if rate > 0 else 0.0
            times.append(now_s)
        if self.ramp_up is None and now_s > 0:
            scale = count / self.request_rate / now_s
            times = [time_s * scale for time_s in times]
        return times

    def _rate(self, progress: float) -> float:
        return self.ramp_up.rate(progress) if self.ramp_up else self.request_rate
