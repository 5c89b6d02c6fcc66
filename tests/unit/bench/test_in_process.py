"""`bench latency` and `throughput`: an engine core is driven to the end, and the lines are vLLM's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.bench import latency as latency_module
from appliance.bench import throughput as throughput_module
from appliance.bench.command import run_bench
from appliance.bench.in_process import Generated, generate, make_requests
from appliance.bench.latency import format_latency
from appliance.bench.throughput import Throughput
from appliance.errors import ApplianceError, SettingsError
from tests.unit.engine.builders import make_core, make_info

GOLDEN = """\
Avg latency: 2.500000 seconds
10% percentile latency: 1.300000 seconds
25% percentile latency: 1.750000 seconds
50% percentile latency: 2.500000 seconds
75% percentile latency: 3.250000 seconds
90% percentile latency: 3.700000 seconds
99% percentile latency: 3.970000 seconds
Median time until every request had its first token: 0.500000 seconds
Output token throughput: 4.00 tok/s"""


def test_generate_counts() -> None:
    requests = [request for index in range(3) for request in make_requests(f"{index}", [1 + index, 2, 3], 5, 2, index)]
    finished: list[None] = []
    generated = generate(make_core(), requests, lambda: finished.append(None))
    assert generated.num_output_tokens == 3 * 2 * 5
    assert len(finished) == 6
    assert 0 < generated.first_tokens_s <= generated.duration_s


def test_refused_request() -> None:
    with pytest.raises(ApplianceError, match=r"the engine refused a request: .*200"):
        generate(make_core(), make_requests("long", [1] * 300, 5, 1, 0))


def test_latency_lines() -> None:
    assert format_latency([Generated(float(seconds), 0.5, 10) for seconds in (1, 2, 3, 4)]) == GOLDEN


def test_throughput_lines() -> None:
    result = Throughput(10, 200, 300, 4.0)
    assert str(result).splitlines() == [
        "Throughput: 2.50 requests/s, 125.00 total tokens/s, 75.00 output tokens/s",
        "Total num prompt tokens:  200",
        "Total num output tokens:  300",
    ]
    assert result.as_json()["tokens_per_second"] == 125.0


def test_latency_command(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    core = make_core()
    monkeypatch.setattr(latency_module, "load_core", lambda loaded, prefix_caching: core)
    file = tmp_path / "latency.json"
    flags = ["--batch-size", "2", "--input-len", "4", "--output-len", "3", "--num-iters", "5", "--n", "2"]
    assert run_bench(["latency", str(smollm2), *flags, "--output-json", str(file)]) == 0
    assert capsys.readouterr().out.startswith("Avg latency: ")
    assert len(json.loads(file.read_text())["latencies"]) == 5


def test_throughput_command(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    core = make_core(info=make_info(vocab_size=49152))
    monkeypatch.setattr(throughput_module, "load_core", lambda loaded, prefix_caching: core)
    file = tmp_path / "throughput.json"
    flags = ["--num-prompts", "4", "--input-len", "12", "--output-len", "3", "--n", "2", "--output-json", str(file)]
    assert run_bench(["throughput", "--model", str(smollm2), *flags]) == 0
    out = capsys.readouterr().out
    assert "Total num prompt tokens:  48" in out
    assert "Total num output tokens:  24" in out
    assert json.loads(file.read_text())["num_requests"] == 4


def test_real_engine(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--batch-size",
        "2",
        "--input-len",
        "4",
        "--output-len",
        "3",
        "--num-iters",
        "1",
        "--num-iters-warmup",
        "0",
    ]
    assert (
        run_bench(["latency", str(smollm2), *flags, "--num-gpu-blocks-override", "16", "--max-model-len", "128"]) == 0
    )
    assert "Output token throughput" in capsys.readouterr().out


def test_wrong_flags(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--max-num-seqs"):
        run_bench(["latency", "--max-num-seqs", "0"])
    with pytest.raises(SettingsError, match="no model to serve"):
        run_bench(["throughput", "--models-dir", str(tmp_path)])
    with pytest.raises(SettingsError, match="--port"):
        run_bench(["latency", "--port", "1"])
