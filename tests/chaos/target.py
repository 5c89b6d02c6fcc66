"""The box that is broken: its programs by name, a run directory that can be full, a wall clock that can be set."""

from __future__ import annotations

import contextlib
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.box.proxy import short_dir
from tests.box.running_box import RunningBox, running_box

DISK_MIB = 64
NUM_API_WORKERS = 2
WHOLE_WITHIN_S = READY_WITHIN_S = 900.0  # where others take the processors, an engine needs minutes to be loaded
_CLOCK_SOURCE = Path(__file__).parent / "clock.c"


@dataclass(frozen=True)
class Target:
    """A running box; `disk` is its run directory where that is small enough to be filled, `clock` sets its time."""

    box: RunningBox
    disk: Path | None
    clock: Path | None

    def find_engine(self) -> psutil.Process | None:
        """The engine process."""
        return _first(self.box.find("engine", "--index"))

    def find_api_master(self) -> psutil.Process | None:
        """gunicorn itself: the one whose parent is no gunicorn."""
        found = self.box.find("gunicorn")
        return _first([process for process in found if _parent(process) not in {other.pid for other in found}])

    def find_api_workers(self) -> list[psutil.Process]:
        """Those that answer."""
        found = self.box.find("gunicorn")
        return [process for process in found if _parent(process) in {other.pid for other in found}]

    def find_proxy_master(self) -> psutil.Process | None:
        """nginx' master."""
        return _first(self.box.find("nginx: master"))

    def find_proxy_workers(self) -> list[psutil.Process]:
        """nginx' workers."""
        return self.box.find("nginx: worker process")

    def is_whole(self) -> bool:
        """Every program is there, and the box says that it is ready."""
        programs = (self.find_engine(), self.find_api_master(), self.find_proxy_master())
        if not all(programs) or not self.find_proxy_workers() or len(self.find_api_workers()) < NUM_API_WORKERS:
            return False
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.box.url}/readyz", timeout=5).status_code == 200
        return False

    def wait_whole(self) -> None:
        """Until it has recovered, twice seen."""
        self.box.wait_until(self.is_whole, WHOLE_WITHIN_S)
        time.sleep(0.5)
        self.box.wait_until(self.is_whole, WHOLE_WITHIN_S)

    def set_clock(self, offset_s: float) -> None:
        """All programs' wall clocks, at once."""
        assert self.clock
        write_offset(self.clock, offset_s)


def write_offset(clock: Path, offset_s: float) -> None:
    """Set the wall clock of the programs that keep to this file, which stays the same file."""
    with clock.open("r+b") as file:
        file.write(struct.pack("d", offset_s))


@contextlib.contextmanager
def running_target(model: Path, flags: list[str]) -> Iterator[Target]:
    """A box whose disk and clock can be broken where this machine lets us: a mount needs root, the clock a compiler."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # a box and a mount must not be left behind
    try:
        with _running_target(model, flags) as target:
            yield target
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _running_target(model: Path, flags: list[str]) -> Iterator[Target]:
    with short_dir() as folder, _small_disk(folder) as disk, own_clock(folder) as (clock, environment):
        own = ["--api-workers", str(NUM_API_WORKERS), *(["--run-dir", str(disk / "run")] if disk else [])]
        with running_box(model, flags=[*flags, *own], environment=environment) as box:
            box.wait_until(lambda: "Breadbox is ready" in box.output, READY_WITHIN_S)
            yield Target(box, disk, clock)


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path | None]:
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True, capture_output=True)


@contextlib.contextmanager
def own_clock(folder: Path) -> Iterator[tuple[Path | None, dict[str, str]]]:
    """A file that holds a wall clock's offset, and the environment of programs that keep to it; needs a compiler."""
    library, clock = folder / "clock.so", folder / "clock"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        yield None, {}
        return
    build = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_CLOCK_SOURCE), "-ldl"]
    subprocess.run(build, check=True, capture_output=True)
    clock.write_bytes(struct.pack("d", 0.0))
    yield clock, {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(clock)}


def _first(found: list[psutil.Process]) -> psutil.Process | None:
    return found[0] if found else None


def _parent(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.ppid())
    return 0
