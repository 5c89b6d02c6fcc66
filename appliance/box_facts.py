"""What the metrics tell about a box as a whole, read at each scrape: version, drain, restarts, memory of its programs.

Every start of a program is a line with its pid in ``<run dir>/prometheus/<program>.starts`` (`supervisor.launch` and
gunicorn's hook write them), so that restarts are counted exactly, whoever of the box is restarted. Of nginx's workers
the deaths are known (`supervisor.nginx_log`), each of which nginx answers with a start.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance import __version__
from appliance.settings import Settings

API_WORKER = "api-worker"
DRAINING_FILE = "draining"  # holds the deadline of a box that goes down
NOT_READY_FILE = "not-ready"  # an operator took the box out of rotation: `breadbox drain`
STUCK_FILE = "stuck"  # an engine does not come back: only a new container would help
NGINX_WORKER = "nginx-worker"
NGINX_WORKER_DEATHS = f"prometheus/{NGINX_WORKER}.deaths"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class BoxFacts(Collector):
    """A collector over the run directory; without one (in tests) there is only the version."""

    def __init__(self, settings: Settings) -> None:
        self._run_dir = settings.run_dir
        # How often a program is started that never fails.
        self._starts = {f"engine-{index}": 1 for index in range(len(settings.model))}
        self._starts |= {"api": 1, API_WORKER: settings.api_workers or 1, "nginx": 1}

    def collect(self) -> Iterator[Metric]:
        """The families as they are now."""
        facts = {"version": __version__, "python": platform.python_version()}
        build = GaugeMetricFamily("breadbox:build_info", "The software's version.", labels=list(facts))
        build.add_metric(list(facts.values()), 1)
        yield build
        if self._run_dir is not None:
            yield self._draining(self._run_dir)
            pids = {program: read_starts(self._run_dir, program) for program in self._starts}
            yield self._restarts(self._run_dir, pids)
            yield from _processes(pids)

    @staticmethod
    def _draining(run_dir: Path) -> Metric:
        family = GaugeMetricFamily("breadbox:draining", "1 while the box goes down or is out of rotation.")
        family.add_metric([], any((run_dir / name).exists() for name in (DRAINING_FILE, NOT_READY_FILE)))
        return family

    def _restarts(self, run_dir: Path, pids: dict[str, list[int]]) -> Metric:
        family = CounterMetricFamily("breadbox:restarts", "Times a program was started again.", labels=["program"])
        for program, starts in pids.items():
            family.add_metric([program], max(0, len(starts) - self._starts[program]))
        family.add_metric([NGINX_WORKER], len(_read_pids(run_dir / NGINX_WORKER_DEATHS)))
        return family


def read_starts(run_dir: Path, program: str) -> list[int]:
    """The pids under which a program was started so far."""
    return _read_pids(run_dir / "prometheus" / f"{program}.starts")


def _read_pids(file: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(line) for line in file.read_text().split()]
    return []


def _processes(pids: dict[str, list[int]]) -> Iterator[Metric]:
    memory = GaugeMetricFamily("breadbox:resident_memory_bytes", "Memory of a program's processes.", labels=["program"])
    files = GaugeMetricFamily(
        "breadbox:open_fds", "Open file descriptors of a program's processes.", labels=["program"]
    )
    for program, starts in pids.items():
        living = [pid for pid in starts if Path(f"/proc/{pid}").exists()]
        memory.add_metric([program], sum(map(_resident_bytes, living)))
        files.add_metric([program], sum(map(_num_files, living)))
    return iter((memory, files))


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def _num_files(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0
