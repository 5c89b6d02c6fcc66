"""Take out of a virtual environment what a server never opens: `trim.py VARIANT VENV`.

Only whole things that nothing imports at run time: installers, headers, tests, static libraries, and, where no GPU
kernel is compiled, what torch needs for its own compiler and for training alone; libraries lose the names that only a
debugger reads. The image's tests start the result.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import source_from_cache
from pathlib import Path

ALWAYS = (
    *("pip", "pip-*", "setuptools", "setuptools-*", "_distutils_hack", "distutils-precedence.pth", "pkg_resources"),
    *(
        "torch/include",
        "torch/test",
        "torch/bin/test_*",
        "torch/bin/protoc*",
        "torch/share",
        "torch/lib/*.a",
        "torch/lib/lib*_test.so",
    ),
    *("torch/lib/libbackend_with_compiler.so", "numpy/_core/include", "numpy/random/lib"),
    *("**/tests", "**/*.pyi", "**/*.pxd", "**/*.pyx"),
)
WITHOUT_GPU = (
    # Used by torch.compile, its shape arithmetic and its kernels only.
    *("sympy", "sympy-*", "mpmath", "mpmath-*", "networkx", "networkx-*", "isympy.py"),
    *("torch/_dynamo", "torch/_inductor", "torch/_vendor/quack", "torch/onnx"),
    # Training on several machines, and the tests of torch that `torch.testing` does not import.
    *(
        f"torch/distributed/{name}"
        for name in ("_shard", "_tools", "checkpoint", "elastic", "fsdp", "pipelining", "tensor")
    ),
    *("torch/testing/_internal/common_[!d]*", "torch/testing/_internal/[!_]*/"),
    # Only makes downloads from a hub faster.
    *("hf_xet", "hf_xet-*"),
)


def main(variant: str, venv: Path) -> None:
    """Trim, and say how much it was."""
    (packages,) = venv.glob("lib/python3*/site-packages")
    before = _size(venv)
    for pattern in (*ALWAYS, *(WITHOUT_GPU if variant == "cpu" else ())):
        for path in list(packages.glob(pattern)):
            _remove(path)
    for path in _installers(venv / "bin"):
        path.unlink()
    _remove_orphans(packages)
    if variant == "cpu":
        _strip(packages)
    print(f"trimmed {before >> 20} MiB to {_size(venv) >> 20} MiB")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _installers(binaries: Path) -> Iterator[Path]:
    """Everything but Python itself: nothing in here is started by name (and gunicorn and supervisord are modules)."""
    return (path for path in binaries.iterdir() if not path.name.startswith("python"))


def _remove_orphans(packages: Path) -> None:
    """Compiled code whose source is gone."""
    for path in packages.rglob("__pycache__/*.pyc"):
        if not Path(source_from_cache(path)).exists():
            path.unlink()


def _strip(packages: Path) -> None:
    """Take the symbol tables out, but not in *.libs: the layout of those was patched in a way that strip may break."""
    libraries = [path for path in packages.rglob("*.so") if not any(part.endswith(".libs") for part in path.parts)]
    subprocess.run(["strip", "--strip-unneeded", *map(str, libraries)], check=True)


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
