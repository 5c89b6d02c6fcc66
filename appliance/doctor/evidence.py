"""Everything that the checks look at, gathered once. What cannot be had is None or empty; the checks then pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from appliance.doctor.samples import Samples
from appliance.settings import Settings

SHORTEST_STREAM_S = 0.4  # one that is over sooner may arrive together all by itself
_FEW = 20  # observations in the watched seconds that are enough to judge by these alone


@dataclass(frozen=True)
class Limits:
    """From where on something is too slow."""

    ttft_s: float = 2.5
    itl_s: float = 0.2
    tokens_per_s: float | None = None  # expected under load


@dataclass(frozen=True)
class Probe:
    """A small stream that the doctor asked for: seconds from the request to each arrival, tokens, headers."""

    arrivals_s: tuple[float, ...] = ()
    num_chunks: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    is_complete: bool = True
    error: str | None = None

    @property
    def is_telling(self) -> bool:
        """Whether it lasted long enough to see how it flows."""
        return bool(self.arrivals_s) and self.arrivals_s[-1] >= SHORTEST_STREAM_S


@dataclass(frozen=True)
class Gpu:
    """As nvidia-smi tells."""

    name: str
    used_bytes: int
    total_bytes: int
    is_throttled: bool


@dataclass(frozen=True)
class Folder:
    """Room on the disk (or in the memory) behind a folder."""

    path: str
    free_bytes: int
    total_bytes: int
    free_inodes_share: float = 1.0


@dataclass(frozen=True)
class Machine:
    """The machine that the box runs on; only known where the doctor runs there, too."""

    num_cores: int
    load: float  # processes that want to run, over the last minute
    stolen_share: float  # of the CPU time, by the hypervisor
    throttled_share: float  # of the time slices in which the container's CPU limit was hit
    memory_limit_bytes: int
    memory_free_bytes: int
    num_oom_kills: int  # in this control group
    max_files: int  # that each of the box's programs may open
    folders: tuple[Folder, ...] = ()
    shared_memory: Folder | None = None


@dataclass(frozen=True)
class Evidence:
    """``before`` and ``after`` are two scrapes, ``seconds`` apart."""

    url: str = ""
    error: str | None = None  # why the box could not be reached
    readiness: dict[str, Any] = field(default_factory=dict)
    before: Samples = field(default_factory=Samples)
    after: Samples = field(default_factory=Samples)
    seconds: float = 1.0
    probe: Probe | None = None
    settings: Settings | None = None
    proxy_configs: dict[str, str] = field(default_factory=dict)  # text by path
    log: str = ""
    machine: Machine | None = None
    gpus: tuple[Gpu, ...] = ()
    clock_skew_s: float | None = None
    limits: Limits = field(default_factory=Limits)

    @property
    def window(self) -> Samples:
        """What happened between the two scrapes."""
        return self.after.since(self.before)

    def recent(self, histogram: str, enough: int = _FEW) -> Samples:
        """The watched seconds where `enough` was observed in them, else everything since the start."""
        window = self.window
        return window if window.total(f"{histogram}_count") >= enough else self.after

    @property
    def is_ready(self) -> bool:
        """Whether requests are served."""
        return self.readiness.get("status") == "ready"

    @property
    def models(self) -> list[dict[str, Any]]:
        """What /readyz tells of each model."""
        return list(self.readiness.get("models", []))
