"""Compile the C++ library: ``python -m engine.kernels.native.build``. One shared object an instruction set.

Needs nothing but a C++20 compiler (`g++`, or what ``--compiler`` says). `targets` says what is built and where to.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.errors import ConfigError
from engine.kernels.native.targets import BUILD_DIR, SOURCES, Isa, compiler_flags, isas, library_path


def build(isa: Isa, *, sanitize: bool = False, compiler: str = "g++") -> Path:
    """Compile unless it is there already. Raises ConfigError with one line where the compiler is missing or fails."""
    path = library_path(isa, sanitize=sanitize)
    if path.exists():
        return path
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"the CPU kernels need a C++20 compiler: {compiler} is not installed (Debian: apt install g++)"
        )
    BUILD_DIR.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD_DIR) as scratch:  # renamed into place: no half-written object is loaded
        fresh = Path(scratch) / "library.so"
        command = [compiler, *compiler_flags(isa, sanitize=sanitize), *map(str, SOURCES), "-o", str(fresh)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
            raise ConfigError(f"{compiler} cannot build the CPU kernels for {isa.name}: {first}")
        fresh.rename(path)
    _remove_stale(isa, path, sanitize)
    return path


def build_all(names: list[str] | None = None, *, sanitize: bool = False, compiler: str = "g++") -> list[Path]:
    """Compile the named builds, None: all; two at a time."""
    wanted = [isa for isa in isas() if names is None or isa.name in names]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(lambda isa: build(isa, sanitize=sanitize, compiler=compiler), wanted))


def _remove_stale(isa: Isa, keep: Path, sanitize: bool) -> None:
    pattern = f"breadbox-{isa.name}-{'sanitized-' if sanitize else ''}{'?' * 12}.so"
    for old in BUILD_DIR.glob(pattern):
        if old != keep:
            old.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.kernels.native.build", description=__doc__)
    names = [isa.name for isa in isas()]
    parser.add_argument("--isa", choices=names, action="append", help="only this instruction set (default: all)")
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--sanitize", action="store_true", help="with address and undefined-behaviour sanitizers")
    options = parser.parse_args(arguments)
    try:
        for path in build_all(options.isa, sanitize=options.sanitize, compiler=options.compiler):
            print(path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
