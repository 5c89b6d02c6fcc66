"""Records what ops launch, compiles it for a chip, and reads what the assembler made of it."""

from __future__ import annotations

import inspect
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton import compile as triton_compile
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

OPTIONS = ("num_warps", "num_stages", "num_ctas", "enable_fp_fusion")
TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float64: "fp64",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv",
}
MATRIX = r"\b(?:[HQI]GMMA|UTC[A-Z]*MMA|[HQI]MMA)\b"
DIVISOR = 16  # what torch's pointers are aligned to, and what sizes are specialised on


@dataclass(frozen=True)
class Launch:
    """One kernel with the types and constants of one launch."""

    function: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """The kernel's name without its affixes."""
        return str(self.function.__name__).strip("_").removesuffix("_kernel")


@dataclass(frozen=True)
class Compiled:
    """What one chip's assembler made of a launch."""

    registers: int
    spills: int  # instructions that load or store spilled registers
    shared_bytes: int
    matrix_instructions: int
    wide_loads: int  # of 16 bytes
    has_dot: bool  # whether the kernel asks for a matrix product


@contextmanager
def recording(launches: list[Launch]) -> Iterator[None]:
    """Kernels are not launched but added to `launches`."""

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append(_launch(self, args, kwargs))

    original = JITFunction.run
    JITFunction.run = run
    try:
        yield
    finally:
        JITFunction.run = original


def _launch(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    bound = inspect.signature(function.fn).bind(*args, **kwargs).arguments
    signature, constants, divisible = [], [], []
    for parameter in function.params:
        value = bound[parameter.name]
        is_plain = parameter.do_not_specialize
        is_any = is_plain or parameter.do_not_specialize_on_alignment
        if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1 and not is_plain):
            signature.append((parameter.name, "constexpr"))
            constants.append((parameter.name, value))
            continue
        signature.append((parameter.name, _type_of(value)))
        # Torch's allocations are aligned; of sizes, those that a model's dimensions divide.
        is_multiple = isinstance(value, Tensor) or (isinstance(value, int) and value % DIVISOR == 0)
        if is_multiple and not is_any:
            divisible.append(parameter.name)
    return Launch(function, tuple(signature), tuple(constants), tuple(divisible), tuple(sorted(options.items())))


def _type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    return "fp32" if isinstance(value, float) else "i32"


def compile_launch(launch: Launch, capability: int) -> Compiled:
    """Compile for a chip. Whatever the compiler raises goes through."""
    index = {name: position for position, (name, _) in enumerate(launch.signature)}
    source = ASTSource(
        fn=launch.function,
        signature=dict(launch.signature),
        constexprs={(index[name],): value for name, value in launch.constants},
        attrs={(index[name],): [["tt.divisibility", DIVISOR]] for name in launch.divisible},
    )
    compiled = triton_compile(source, target=GPUTarget("cuda", capability, 32), options=dict(launch.options))
    return _measure(compiled)


def _measure(compiled: Any) -> Compiled:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _output(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name)
        assembly = _output(knobs.nvidia.nvdisasm.path, "-c", file.name)
    found = re.search(r"REG:(\d+)", usage)
    return Compiled(
        registers=int(found.group(1)) if found else 0,
        spills=len(re.findall(r"\b(?:LDL|STL)\b", assembly)),
        shared_bytes=compiled.metadata.shared,
        matrix_instructions=len(re.findall(MATRIX, assembly)),
        wide_loads=len(re.findall(r"\bLDG(?:STS)?\.E(?:\.\w+)*\.128", assembly)),
        has_dot="tt.dot" in compiled.asm["ttir"],
    )


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def record(run: Callable[[], object]) -> list[Launch]:
    """The different launches of what `run` does."""
    launches: list[Launch] = []
    with recording(launches):
        run()
    return list(dict.fromkeys(launches))
