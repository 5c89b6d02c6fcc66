"""`breadbox collect-env`: what a bug report needs to say about this machine, without any secret."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from appliance import __version__
from appliance.derived_settings import count_cores
from appliance.doctor.machine import find_gpus
from appliance.knobs_table import effective_settings
from appliance.memory import available_memory_bytes, describe_bytes, memory_limit_bytes
from appliance.settings import KNOBS, LoadedSettings, from_json, load_settings_and_problems, temporary_dirs
from appliance.supervisor.rendering import find_nginx

Facts = dict[str, str]
_CPU_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_bf16",
    "amx_int8",
    "asimd",
)
_FOR_DEVELOPERS = re.compile(r"""extra == ["'](dev|golden)["']""")
_TIMEOUT_S = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="of a box that was started with --run-dir")


def run_collect_env(args: argparse.Namespace) -> int:
    """Print everything."""
    facts = {title: collect() for title, collect in SECTIONS.items()}
    facts |= describe_boxes(args.run_dir)
    print(json.dumps(facts, indent=2) if args.json else as_text(facts))
    return 0


def as_text(facts: dict[str, Facts]) -> str:
    """For people."""
    lines = []
    for title, section in facts.items():
        lines += ["", title, *(f"  {name:<24} {value}" for name, value in section.items())]
        if not section:
            lines.append("  none")
    return "\n".join(lines[1:])


def describe_software() -> Facts:
    """Breadbox and what it stands on."""
    return {
        "breadbox": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": _system_name(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "container": "yes" if _is_in_container() else "no",
        "nginx": _first_line([find_nginx() or "nginx", "-v"]),
        "compiler": _first_line(["g++", "--version"]),
        "docker": _first_line(["docker", "--version"]),
    }


def describe_packages() -> Facts:
    """The packages that this one asks for, as they are installed."""
    try:
        wanted = importlib.metadata.requires("breadbox") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    used = [line for line in wanted if not _FOR_DEVELOPERS.search(line)]
    names = dict.fromkeys(match[0] for line in used if (match := re.match(r"[\w.-]+", line)))
    found: Facts = {}
    for name in sorted(names):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def describe_machine() -> Facts:
    """Processor, memory, limits."""
    info = _read("/proc/cpuinfo")
    flags = set((_find(r"^(?:flags|Features)\s*:\s*(.*)$", info) or "").split())
    return {
        "processor": _find(r"^model name\s*:\s*(.*)$", info) or platform.machine(),
        "cores": f"{count_cores()} usable of {os.cpu_count()}",
        "instructions": " ".join(flag for flag in _CPU_FLAGS if flag in flags) or "-",
        "memory": f"{describe_bytes(available_memory_bytes())} free of {describe_bytes(memory_limit_bytes())}",
        "shared memory": _disk("/dev/shm"),  # noqa: S108 - looked at, not written to
        "huge pages": _find(r"\[(\w+)\]", _read("/sys/kernel/mm/transparent_hugepage/enabled")) or "-",
        "open files": _find(r"^Max open files\s+(\d+)", _read("/proc/self/limits")) or "-",
        "load": " ".join(f"{value:.2f}" for value in os.getloadavg()),
    }


def describe_gpus() -> Facts:
    """As nvidia-smi tells; nothing where there is none."""
    facts = {}
    for index, gpu in enumerate(find_gpus()):
        used = f"{describe_bytes(gpu.used_bytes)} used of {describe_bytes(gpu.total_bytes)}"
        facts[f"gpu {index}"] = f"{gpu.name}, {used}" + (", throttled" if gpu.is_throttled else "")
    if facts:
        facts["driver"] = _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return facts


def describe_settings() -> Facts:
    """Those that the environment sets, secrets masked, and what is wrong with them."""
    loaded, problems = load_settings_and_problems({})
    facts = _set_values(loaded)
    return facts | {f"problem {number}": problem for number, problem in enumerate(problems, 1)}


def describe_models() -> Facts:
    """Baked models in --models-dir, and the room beside them."""
    folder = load_settings_and_problems({})[0].settings.models_dir.expanduser()
    facts = {"folder": str(folder), "disk": _disk(str(folder))}
    for manifest in sorted(folder.glob("*/manifest.json")):
        size = sum(file.stat().st_size for file in manifest.parent.iterdir() if file.is_file())
        facts[manifest.parent.name] = describe_bytes(size)
    return facts


def describe_boxes(run_dir: Path | None) -> dict[str, Facts]:
    """A section for each run directory: who runs there, with which settings."""
    found = [run_dir] if run_dir else [path for home in temporary_dirs() for path in home.glob("breadbox-*")]
    facts: dict[str, Facts] = {}
    for folder in dict.fromkeys(path.resolve() for path in found):
        with contextlib.suppress(OSError):
            facts[f"Box in {folder}"] = _describe_run_dir(folder)
    return facts


def _describe_run_dir(folder: Path) -> Facts:
    facts = {"state": "a box runs here" if _is_locked(folder / "lock") else "left by a box that was killed"}
    facts["sockets"] = " ".join(sorted(path.name for path in folder.glob("*.sock"))) or "none"
    for starts in sorted(folder.glob("prometheus/*.starts")):
        pids = starts.read_text().split()
        living = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        facts[starts.stem] = f"started {len(pids)} times, running: {' '.join(living) or 'no'}"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        settings = from_json((folder / "settings.json").read_text(encoding="utf-8"))
        changed = {knob.name for knob in KNOBS if getattr(settings, knob.name) != knob.default}
        sources = {knob.name: "flag" if knob.name in changed else "default" for knob in KNOBS}
        facts |= _set_values(LoadedSettings(settings, sources))
    return facts


def _set_values(loaded: LoadedSettings) -> Facts:
    entries = effective_settings(loaded).items()
    return {name: str(entry["value"]) for name, entry in entries if entry["source"] != "default"}


def _is_locked(file: Path) -> bool:
    with file.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _is_in_container() -> bool:
    return Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()


def _system_name() -> str:
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    return platform.system()


def _first_line(command: Iterable[str]) -> str:
    words = list(command)
    if shutil.which(words[0]) is None:
        return "none"
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"cannot be asked: {error}"
    return next(iter((done.stdout or done.stderr).splitlines()), "-")


def _disk(folder: str) -> str:
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(folder)
        return f"{describe_bytes(usage.free)} free of {describe_bytes(usage.total)}"
    return "not there"


def _read(file: str) -> str:
    with contextlib.suppress(OSError):
        return Path(file).read_text()
    return ""


def _find(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1].strip() if match else None


SECTIONS: dict[str, Callable[[], Facts]] = {
    "Software": describe_software,
    "Packages": describe_packages,
    "Machine": describe_machine,
    "GPUs": describe_gpus,
    "Settings from the environment": describe_settings,
    "Models": describe_models,
}
