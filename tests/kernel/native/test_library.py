"""The library as a process-wide thing: choosing a build, threads, forks, callers on several threads."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from engine.errors import ConfigError
from engine.kernels.native import library as library_module
from engine.kernels.native import targets
from engine.kernels.native.library import SHORT_LOOK_UP, Epilogue, Format, Library, NativeError, load_library
from engine.kernels.native.packing import pack, unpack_rows
from engine.kernels.native.targets import isas, runs_here
from tests.kernel.native.test_linear import run


def test_the_best_build_for_this_cpu_is_loaded() -> None:
    best = next(isa for isa in isas() if runs_here(isa))
    assert load_library().isa == best.name


def test_an_unknown_build_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'abacus'.*run python -m engine.kernels.native.build"):
        load_library("abacus")


def test_a_build_that_this_cpu_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first instruction would end the process."""
    best = isas()[0]
    if not best.features:
        pytest.skip("the portable build needs nothing")
    for module in (targets, library_module):
        monkeypatch.setattr(module, "cpu_features", lambda: frozenset({"sse2"}))
    lacks = " ".join(sorted(best.features))
    with pytest.raises(
        ConfigError, match=rf"'{best.name}' of the CPU kernels cannot run here: this CPU lacks {lacks}$"
    ):
        load_library.__wrapped__(best.name)


def test_tiles_are_used_only_where_the_kernel_grants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may show AMX in its list of features and yet refuse the registers."""
    tiled = [isa for isa in isas() if isa.uses_tiles]
    everything = frozenset().union(*(isa.features for isa in isas()))
    monkeypatch.setattr(targets, "cpu_features", lambda: everything)
    for is_granted in (True, False):
        monkeypatch.setattr(targets, "may_use_tiles", lambda granted=is_granted: granted)
        assert [isa for isa in isas() if runs_here(isa)] == [isa for isa in isas() if is_granted or isa not in tiled]
    monkeypatch.setattr(library_module, "cpu_features", lambda: everything)
    for isa in tiled:
        with pytest.raises(ConfigError, match="cannot run here: the kernel grants this process no tile registers"):
            load_library.__wrapped__(isa.name)


def test_number_of_threads(library: Library) -> None:
    library.set_num_threads(3)
    assert library.num_threads == 3
    library.set_num_threads(None)
    assert library.num_threads == len(os.sched_getaffinity(0))
    with pytest.raises(NativeError, match="num_threads must be 0 … 1024, not -1"):
        library.set_num_threads(-1)


def test_callers_on_several_threads_take_turns(library: Library) -> None:
    weight, x = pack(torch.randn(96, 64), Format.INT8), torch.randn(40, 64)
    wanted = run(library, weight, x)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: run(library, weight, x), range(200)):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("n", [16, 80, 528])
def test_every_item_is_computed_once_by_any_team(library: Library, n: int) -> None:
    """Adding to what is there shows an item that was left out as well as one that was done twice; others use the cores,
    so that members come late, or not at all.
    """
    weight, x = pack(torch.randn(n, 64), Format.INT8), torch.randn(130, 64)
    library.set_num_threads(1)
    wanted = run(library, weight, x, epilogue=Epilogue.ADD, y=torch.ones(130, n))
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        for threads in (2, 3, 5, 8):
            library.set_num_threads(threads)
            for rows in (1, 2, 3, 97, 130):
                for _ in range(5):
                    found = run(library, weight, x[:rows], epilogue=Epilogue.ADD, y=torch.ones(rows, n))
                    assert torch.equal(found, wanted[:rows]), (threads, rows)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def test_only_a_short_look_up_keeps_the_interpreters_lock(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt's takes milliseconds, in which the engine's other threads would stand still."""
    weight, ids = pack(torch.randn(80, 64), Format.BFLOAT16), torch.arange(SHORT_LOOK_UP + 1)
    wanted = unpack_rows(weight, ids, library)
    with monkeypatch.context() as patched:
        patched.setattr(library, "_unpack_few_rows", lambda *_: pytest.fail("it keeps the lock"))
        assert torch.equal(unpack_rows(weight, ids, library), wanted)
    monkeypatch.setattr(library, "_unpack_rows", lambda *_: pytest.fail("it gives the lock away"))
    assert torch.equal(unpack_rows(weight, ids[:-1], library), wanted[:-1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_its_own_threads(library: Library) -> None:
    library.set_num_threads(2)
    weight, x = pack(torch.randn(96, 64), Format.INT8), torch.randn(40, 64)
    wanted = run(library, weight, x)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(run(library, weight, x), wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_measured_floors_are_possible_though_others_want_the_cores(library: Library) -> None:
    """A rate must never be read off a phase that others did before the clock started (once: 1000 times too high)."""
    data, cores = torch.ones(1 << 18), len(os.sched_getaffinity(0))
    library.set_num_threads(1)
    alone = library.measure(data.data_ptr(), data.numel(), 20)
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        library.set_num_threads(cores)
        together = library.measure(data.data_ptr(), data.numel(), 40)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    for one, all_cores in zip(alone, together, strict=True):
        assert 0 < all_cores < 4 * cores * one
