"""Compiling: free when nothing changed, one clear line when it cannot be done."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.kernels.native import build as build_module
from engine.kernels.native.build import build, main
from engine.kernels.native.targets import Isa, isas, library_path, runs_here

HERE = next(isa for isa in isas() if runs_here(isa))
NEW = Isa("new", ("-DNEW",))


def test_an_unchanged_library_is_not_built_again() -> None:
    path = library_path(HERE)
    before = path.stat().st_mtime_ns
    assert build(HERE, compiler="no-such-compiler") == path
    assert path.stat().st_mtime_ns == before


def test_a_missing_compiler_is_named() -> None:
    with pytest.raises(ConfigError, match=r"C\+\+20 compiler: no-such-compiler is not installed"):
        build(NEW, compiler="no-such-compiler")


def test_a_failing_compiler_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'linear.cpp:1: error: out of luck' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(build_module, "BUILD_DIR", tmp_path / "build")
    with pytest.raises(ConfigError, match=r"cannot build the CPU kernels for new: linear.cpp:1: error: out of luck"):
        build(NEW, compiler=str(compiler))
    assert list((tmp_path / "build").iterdir()) == []


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--isa", HERE.name]) == 0
    assert capsys.readouterr().out.strip() == str(library_path(HERE))
