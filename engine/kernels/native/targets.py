"""Which builds of the C++ library there are, what they need of a CPU, and where their objects lie.

Objects lie in ``build/`` beside the sources, named by a hash of sources and flags: an unchanged rebuild costs nothing
and a stale object is never loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18  # of x86-64
SOURCE_DIR = Path(__file__).parent
BUILD_DIR = SOURCE_DIR / "build"
SOURCES = sorted(SOURCE_DIR.glob("*.cpp"))
COMMON_FLAGS = (
    *("-std=c++20", "-O3", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra"),
    "-ffp-contract=off",  # a product and a sum must round alike in every instance of a template
    *("-fno-math-errno", "-fno-trapping-math"),  # nobody looks at errno or traps; selections need no branches
    *("-Wno-maybe-uninitialized", "-Wno-uninitialized"),  # GCC 12 warns about its own AVX-512 headers
)
SANITIZER_FLAGS = (
    "-g",
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
)


@dataclass(frozen=True, slots=True)
class Isa:
    """One build of the library and the CPU features (names of /proc/cpuinfo) that it needs."""

    name: str
    flags: tuple[str, ...]
    features: frozenset[str] = frozenset()

    @property
    def uses_tiles(self) -> bool:
        """Whether it uses AMX's tile registers, which a process has to ask for."""
        return "amx_tile" in self.features


_AVX512_FLAGS = ("-march=x86-64-v4", "-mprefer-vector-width=512")
_AVX512_FEATURES = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"})
_VNNI_FLAGS, _VNNI_FEATURES = (*_AVX512_FLAGS, "-mavx512vnni"), _AVX512_FEATURES | {"avx512_vnni"}
X86_ISAS = (  # best first
    Isa(
        "amx",
        (*_VNNI_FLAGS, "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
        _VNNI_FEATURES | {"avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"},
    ),
    Isa("avx512vnni", _VNNI_FLAGS, _VNNI_FEATURES),
    Isa("avx512", _AVX512_FLAGS, _AVX512_FEATURES),
    Isa("avx2", ("-march=x86-64-v3",), frozenset({"avx2", "fma", "f16c", "bmi2"})),
    Isa("portable", ("-DBB_PORTABLE",)),
)
OTHER_ISAS = (Isa("portable", ("-DBB_PORTABLE",)),)


def isas() -> tuple[Isa, ...]:
    """The builds that make sense on this kind of machine, best first."""
    return X86_ISAS if platform.machine() in ("x86_64", "AMD64") else OTHER_ISAS


def library_path(isa: Isa, *, sanitize: bool = False) -> Path:
    """Where the object of this instruction set and these sources lies, whether it is there or not."""
    digest = hashlib.sha256(" ".join(compiler_flags(isa, sanitize=sanitize)).encode())
    for source in sorted([*SOURCES, *SOURCE_DIR.glob("*.h")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return BUILD_DIR / f"breadbox-{isa.name}{'-sanitized' if sanitize else ''}-{digest.hexdigest()[:12]}.so"


def compiler_flags(isa: Isa, *, sanitize: bool) -> list[str]:
    """Everything but sources and output."""
    return [*COMMON_FLAGS, *isa.flags, *(SANITIZER_FLAGS if sanitize else ())]


def runs_here(isa: Isa) -> bool:
    """Whether this CPU has what the build needs, and the kernel lets this process use it."""
    return isa.features <= cpu_features() and (not isa.uses_tiles or may_use_tiles())


def is_built() -> bool:
    """Whether a build for this CPU is there."""
    return any(runs_here(isa) and library_path(isa).exists() for isa in isas())


@cache
def may_use_tiles() -> bool:
    """Ask the kernel for AMX's tile registers, for all threads of this process and its forks (``arch_prctl(2)``)."""
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)) == 0


@cache
def cpu_features() -> frozenset[str]:
    """Feature names of the first core, as the kernel lists them; empty where it lists none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())
