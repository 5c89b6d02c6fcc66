"""Take out of a virtual environment what a server never opens: `trim.py VARIANT VENV`.

Only whole things that nothing imports at run time: installers, headers, tests, static libraries, and, where no GPU
kernel is compiled, what torch needs for its own compiler alone. The image's tests start the result.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
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
# Used by torch.compile and its shape arithmetic only.
WITHOUT_GPU = ("sympy", "sympy-*", "mpmath", "mpmath-*", "networkx", "networkx-*", "isympy.py", "torch/_inductor")


def main(variant: str, venv: Path) -> None:
    """Trim, and say how much it was."""
    (packages,) = venv.glob("lib/python3*/site-packages")
    before = _size(venv)
    for pattern in (*ALWAYS, *(WITHOUT_GPU if variant == "cpu" else ())):
        for path in list(packages.glob(pattern)):
            _remove(path)
    for path in _installers(venv / "bin"):
        path.unlink()
    print(f"trimmed {before >> 20} MiB to {_size(venv) >> 20} MiB")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _installers(binaries: Path) -> Iterator[Path]:
    """Everything but Python itself: nothing in here is started by name (and gunicorn and supervisord are modules)."""
    return (path for path in binaries.iterdir() if not path.name.startswith("python"))


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
