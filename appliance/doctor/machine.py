"""The machine that the box and the doctor share: cores, memory, limits, folders, GPUs."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from appliance.derived_settings import count_cores
from appliance.doctor.evidence import Folder, Gpu, Machine
from appliance.memory import available_memory_bytes, memory_limit_bytes

_CPU_STATS = (Path("/sys/fs/cgroup/cpu.stat"), Path("/sys/fs/cgroup/cpu/cpu.stat"))
_MEMORY_EVENTS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written to
_STOLEN = 7  # place in the line of /proc/stat
_GPU_FIELDS = "name,memory.used,memory.total,clocks_throttle_reasons.hw_slowdown"


class MachineWatch:
    """Made before the watched seconds, asked after them."""

    def __init__(self) -> None:
        self._cpu = _cpu_times()
        self._slices = _cpu_slices()

    def look(self, run_dir: Path | None) -> Machine:
        """The machine as it is now, shares being those of the watched seconds."""
        cpu = [now - then for now, then in zip(_cpu_times(), self._cpu, strict=True)]
        slices, throttled = (now - then for now, then in zip(_cpu_slices(), self._slices, strict=True))
        return Machine(
            num_cores=count_cores(),
            load=os.getloadavg()[0],
            stolen_share=cpu[_STOLEN] / sum(cpu) if sum(cpu) else 0.0,
            throttled_share=throttled / slices if slices else 0.0,
            memory_limit_bytes=memory_limit_bytes(),
            memory_free_bytes=available_memory_bytes(),
            num_oom_kills=_read_count(_MEMORY_EVENTS, "oom_kill"),
            max_files=_max_files(run_dir),
            folders=tuple(_look_at(path) for path in _folders(run_dir)),
            shared_memory=_look_at(_SHARED_MEMORY) if _SHARED_MEMORY.is_dir() else None,
        )


def _cpu_times() -> list[int]:
    return [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def _cpu_slices() -> tuple[int, int]:
    return _read_count(_CPU_STATS, "nr_periods"), _read_count(_CPU_STATS, "nr_throttled")


def _read_count(files: Iterable[Path], name: str) -> int:
    for file in files:
        with contextlib.suppress(OSError):
            match = re.search(rf"^{name} (\d+)$", file.read_text(), re.MULTILINE)
            if match:
                return int(match[1])
    return 0


def _max_files(run_dir: Path | None) -> int:
    """That of the box's own programs, or what it would get."""
    limits = []
    for starts in run_dir.glob("prometheus/*.starts") if run_dir else ():
        with contextlib.suppress(OSError, IndexError):
            pid = starts.read_text().split()[-1]
            match = re.search(r"^Max open files\s+(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
            limits += [int(match[1])] if match else []
    return min(limits, default=resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _folders(run_dir: Path | None) -> list[Path]:
    return [*([run_dir] if run_dir else []), Path(tempfile.gettempdir())]


def _look_at(path: Path) -> Folder:
    stat = os.statvfs(path)
    inodes = stat.f_favail / stat.f_files if stat.f_files else 1.0
    return Folder(str(path), stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize, inodes)


def find_gpus() -> tuple[Gpu, ...]:
    """As nvidia-smi tells; none where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return read_gpus(text)


def read_gpus(text: str) -> tuple[Gpu, ...]:
    """The answer of nvidia-smi, a line a GPU, memory in MiB."""
    gpus = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            name, used, total, slowdown = (word.strip() for word in line.split(","))
            gpus.append(Gpu(name, int(used) * 1024**2, int(total) * 1024**2, slowdown == "Active"))
    return tuple(gpus)
