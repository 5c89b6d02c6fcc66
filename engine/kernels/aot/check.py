"""Compiles what `cases` launch for chips, in several processes, and says what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context

from engine.kernels.aot import MAX_SPILLS
from engine.kernels.aot.cases import make_cases
from engine.kernels.aot.kernel import Compiled, Launch, compile_launch, record
from engine.kernels.chip import CHIPS, Chip, assume_chip

COLUMNS = ("kernel", "first used by", "sm", "s", "regs", "spills", "shared", "matrix", "128b")
HEAD = "{:26} {:46} {:>3} {:>5} {:>4} {:>6} {:>7} {:>6} {:>4}".format(*COLUMNS)


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel on one chip; `fault` is None where all is well."""

    name: str
    used_by: str
    capability: int
    seconds: float
    compiled: Compiled | None
    fault: str | None

    def __str__(self) -> str:
        head = f"{self.name:26} {self.used_by:46} {self.capability:3} {self.seconds:5.1f}"
        if self.compiled is None:
            return f"{head} FAILED: {self.fault}"
        c = self.compiled
        numbers = f"{c.registers:4} {c.spills:6} {c.shared_bytes:7} {c.matrix_instructions:6} {c.wide_loads:4}"
        return f"{head} {numbers}" + (f" FAILED: {self.fault}" if self.fault else "")


@cache
def find_launches(chip: Chip) -> list[tuple[str, Launch]]:
    """Every different launch on a chip, beside the case that needs it first."""
    found: dict[Launch, str] = {}
    with assume_chip(chip):
        for case in make_cases(chip):
            for launch in record(case.run):
                found.setdefault(launch, f"{case.op} {case.shape}")
    return [(used_by, launch) for launch, used_by in found.items()]


def check(capability: int, index: int) -> Row:
    """Compile the index-th launch of a chip."""
    chip = CHIPS[capability]
    used_by, launch = find_launches(chip)[index]
    start = time.perf_counter()
    try:
        compiled = compile_launch(launch, capability)
    except Exception as error:  # whatever the compiler raises is what this check looks for
        fault = f"{type(error).__name__}: {str(error).strip()[:200]}"
        return Row(launch.name, used_by, capability, time.perf_counter() - start, None, fault)
    return Row(launch.name, used_by, capability, time.perf_counter() - start, compiled, _fault(compiled, chip))


def _fault(compiled: Compiled, chip: Chip) -> str | None:
    if compiled.spills > MAX_SPILLS:
        return f"{compiled.spills} spills, {MAX_SPILLS} allowed"
    if compiled.shared_bytes > chip.shared_bytes:
        return f"needs {compiled.shared_bytes} bytes of shared memory, the chip has {chip.shared_bytes}"
    if compiled.has_dot and not compiled.matrix_instructions:
        return "a product without matrix instructions"
    return None


def check_all(capabilities: list[int], jobs: int, only: str) -> Iterator[Row]:
    """Rows as they get ready, in order."""
    wanted = [
        (capability, index)
        for capability in capabilities
        for index, (used_by, launch) in enumerate(find_launches(CHIPS[capability]))
        if only in f"{launch.name} {used_by}"
    ]
    if jobs == 1:
        yield from (check(*case) for case in wanted)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(_check_case, wanted)


def _check_case(case: tuple[int, int]) -> Row:
    return check(*case)
