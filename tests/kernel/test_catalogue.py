"""Every implementation of every op against the reference, over the catalogue's shapes. A new one is picked up here.

The Triton kernels need a GPU here; `tests/kernel/interpreter` runs the same sweep without one.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

import engine
from engine.kernels import CATALOGUE, FILES, PARTS, SHAPES, load_op, make_shapes
from tests.kernel.op_runs import run_op

DEVICES = {"reference": "cpu", "cpu": "cpu", "cuda": "cuda", "cuda-invariant": "cuda"}
TOLERANCE = {"atol": 2e-4, "rtol": 2e-4}
OPS = CATALOGUE | PARTS


def _cases() -> list[Any]:
    return [
        pytest.param(implementation, op, shape, id=f"{implementation}-{op}-{shape}")
        for op in SHAPES
        for implementation in OPS[op]
        for shape in make_shapes(op)
    ]


@pytest.mark.parametrize("op", OPS)
def test_each_op_has_a_reference(op: str) -> None:
    assert callable(load_op(op, "reference"))


@pytest.mark.parametrize(("implementation", "op", "shape"), _cases())
def test_implementation_equals_the_reference(implementation: str, op: str, shape: Any) -> None:
    if DEVICES[implementation] == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    expected = run_op(op, "reference", shape, torch.device("cpu"))
    found = run_op(op, implementation, shape, torch.device(DEVICES[implementation]))
    torch.testing.assert_close(found, expected, check_device=False, **TOLERANCE)


def test_each_kernel_folder_has_a_reference_and_each_implementation_its_shapes() -> None:
    folder = Path(engine.__file__).parent / "kernels"
    for kernel in folder.glob("*/kernel.py"):
        if "@triton.jit" not in kernel.read_text():
            continue  # compiles the others'
        assert (kernel.parent / "reference.py").exists(), kernel
        listed = [
            op for op, modules in OPS.items() if f"engine.kernels.{kernel.parent.name}.kernel" in modules.values()
        ]
        assert set(listed) & set(SHAPES), f"no op of {kernel} is swept"
    assert set(FILES) == set(DEVICES)


def test_only_kernel_files_import_triton() -> None:
    for path in Path(engine.__file__).parent.rglob("*.py"):
        imports = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        names = [alias.name for node in imports for alias in node.names]
        names += [node.module or "" for node in imports if isinstance(node, ast.ImportFrom)]
        if any(name.split(".")[0] == "triton" for name in names):
            assert path.name == "kernel.py", path
