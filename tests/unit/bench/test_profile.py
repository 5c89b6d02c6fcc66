"""`bench profile`: parts add up to the step, the library is left as it was, and a small run prints its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.bench.command import run_bench
from appliance.bench.profile import Gaps, Profile, format_gaps, format_profiles
from appliance.bench.step_clock import AROUND, ClockedLibrary, ClockedRunner, clock_step
from appliance.errors import ApplianceError, SettingsError
from engine.core import EngineCore
from engine.kernels.native.library import load_library
from engine.kernels.native.targets import is_built
from tests.unit.engine.builders import make_core, make_message

needs_library = pytest.mark.skipif(not is_built(), reason="the C++ library is not built")
SMALL = ["--input-len", "8", "--prefill-len", "40", "--num-steps", "3", "--long-prompt-len", "60", "--repeat", "1"]
ENGINE = ["--num-gpu-blocks-override", "64", "--max-model-len", "128", "--max-num-batched-tokens", "32"]


@needs_library
def test_parts_add_up_to_the_step_and_the_library_is_left_as_it_was() -> None:
    library = load_library()
    own = dict(vars(library))
    core = make_core()
    runner = ClockedRunner(core._runner)
    clocked = EngineCore(core._scheduler._config, runner)
    clocked.add(make_message(8))
    with ClockedLibrary(library) as clock:
        assert vars(library) != own
        outputs, times = clock_step(clocked, runner, clock)
    assert vars(library) == own
    assert len(outputs) == 1
    assert set(AROUND) <= set(times)
    assert min(times.values()) >= 0.0


def test_the_table() -> None:
    parts = {"attention": 0.002, "inputs, glue": 0.001, "scheduling, update": 0.0005, "messages": 0.0005}
    profile = Profile("decode 1", parts)
    assert profile.around_s == pytest.approx(0.002)
    assert format_profiles([profile], is_markdown=False).splitlines()[1] == "attention           2.00 ms 50%"
    lines = format_profiles([profile], is_markdown=True).splitlines()
    assert lines[1] == "| --- | --- |"
    assert lines[-2:] == ["| whole | 4.00 ms |", "| around the kernels | 2.00 ms |"]
    line = format_gaps(Gaps([0.1, 0.2, 0.15], [0.005]), 2048, 256)
    assert "2048 tokens is computed: 150 ms (worst of 3: 200 ms; without it: 5.0 ms; steps of up to 256 tokens)" in line


@needs_library
@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_small_run(shipped_model: Path, temperature: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*SMALL, *ENGINE, "--batch-sizes", "1", "3", "--temperature", temperature, "--no-progress"]
    assert run_bench(["profile", str(shipped_model), *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "part"
    assert {"qkv", "attention", "head"} <= {line[:20].strip() for line in lines}
    assert lines[-1].startswith("Largest gap of a stream while a prompt of 60 tokens")


@needs_library
def test_prompts_longer_than_the_context_are_refused(shipped_model: Path) -> None:
    with pytest.raises(ApplianceError, match="prompts of 200 tokens leave no room"):
        run_bench(["profile", str(shipped_model), *SMALL, *ENGINE, "--input-len", "200", "--no-progress"])


def test_overlapping_steps_are_refused(smollm2: Path) -> None:
    with pytest.raises(SettingsError, match="--async-scheduling"):
        run_bench(["profile", str(smollm2), *ENGINE, "--async-scheduling"])
