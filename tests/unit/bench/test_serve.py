"""`bench serve` against a fake server: what it sends, prints and writes."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from appliance.bench.command import MEASUREMENTS, run_bench
from appliance.bench.load import LoadResult
from appliance.bench.report import ReportOptions, format_report
from appliance.bench.speculation import compare, parse_counters
from appliance.bench.summary import summarize
from appliance.cli import main
from appliance.errors import ApplianceError, SettingsError
from tests.unit.bench.fake_server import FakeServer, answer, chunked, completion, event, head, running
from tests.unit.bench.test_result import make_result

GOLDEN = """\
============ Serving Benchmark Result ============
Successful requests:                     3
Failed requests:                         1
Maximum request concurrency:             2
Request rate configured (RPS):           1.50
Benchmark duration (s):                  4.00
Total input tokens:                      30
Total generated tokens:                  12
Request throughput (req/s):              0.75
Request goodput (req/s):                 0.25
Output token throughput (tok/s):         3.00
Peak output token throughput (tok/s):    5.00
Peak concurrent requests:                2
Total token throughput (tok/s):          10.50
---------------Time to First Token----------------
Mean TTFT (ms):                          416.67
Median TTFT (ms):                        500.00
P50 TTFT (ms):                           500.00
P99.9 TTFT (ms):                         500.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          291.67
Median TPOT (ms):                        250.00
P50 TPOT (ms):                           250.00
P99.9 TPOT (ms):                         499.50
---------------Inter-token Latency----------------
Mean ITL (ms):                           250.00
Median ITL (ms):                         250.00
P50 ITL (ms):                            250.00
P99.9 ITL (ms):                          500.00
----------------End-to-end Latency----------------
Mean E2EL (ms):                          1166.67
Median E2EL (ms):                        1000.00
P50 E2EL (ms):                           1000.00
P99.9 E2EL (ms):                         1499.00
---------------Speculative Decoding---------------
Acceptance rate (%):                     50.00
Acceptance length:                       2.50
Drafts:                                  10
Draft tokens:                            30
Accepted tokens:                         15
Acceptance rate of position 0 (%):       80.00
Acceptance rate of position 1 (%):       70.00
==================================================
1 failed: HTTP 503: full"""

COUNTERS = """\
# HELP vllm:spec_decode_num_drafts_total x
vllm:spec_decode_num_drafts_total{{engine="0"}} {0}
vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {1}
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {2}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {3}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="1"}} {4}
vllm:spec_decode_num_drafts_created{{engine="0"}} 1.7e+09
"""


def serve(server: FakeServer, *flags: str) -> int:
    common = ["--base-url", server.url, "--num-prompts", "6", "--input-len", "8", "--output-len", "4", "--no-progress"]
    return run_bench(["serve", *common, *flags])


def test_golden_block() -> None:
    results = [
        make_result(50.0, 0.25, 0.25, 4),
        make_result(50.5, 0.5, 0.5, 3),
        make_result(52.0, 0.5, 0.125, 5),
        make_result(52.0, 0.0, 0.0, 1, error="HTTP 503: full"),
    ]
    summary = summarize(LoadResult(50.0, 4.0, results), (50.0, 99.9), {"ttft": 300.0, "tpot": 250.0})
    before, after = (parse_counters(COUNTERS.format(*row)) for row in ((5, 5, 5, 1, 0), (15, 35, 20, 9, 7)))
    options = ReportOptions(("ttft", "tpot", "itl", "e2el"), max_concurrency=2, request_rate=1.5)
    assert format_report(summary, options, compare(before, after)) == GOLDEN


def test_serve_prints_and_sends(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(server, "--ignore-eos", "--temperature", "0", "--api-key", "k", "--header", "X-A=b") == 0
    out = capsys.readouterr().out
    assert "Successful requests:                     6" in out
    assert "Total generated tokens:                  24" in out
    assert "Total input tokens:                      60" in out  # from usage, not from what was asked for
    body = server.bodies[0]
    assert server.paths == ["/v1/completions"] * 6
    assert {**body, "prompt": ""} == {
        "model": "fake-model",
        "prompt": "",
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "ignore_eos": True,
    }
    assert server.headers[0]["authorization"] == "Bearer k"
    assert server.headers[0]["x-a"] == "b"
    assert len({body["prompt"] for body in server.bodies}) == 6


def test_chat_warmups_and_extra_body(server: FakeServer) -> None:
    flags = [
        "--backend",
        "openai-chat",
        "--num-warmups",
        "2",
        "--extra-body",
        '{"min_tokens": 4, "stream_options": null}',
    ]
    assert serve(server, *flags) == 0
    assert server.paths == ["/v1/chat/completions"] * 8
    assert server.bodies[0]["min_tokens"] == 4
    assert "stream_options" not in server.bodies[0]
    assert [message["role"] for message in server.bodies[0]["messages"]] == ["user"]


def test_number_of_warmups_leaves_the_prompts(server: FakeServer) -> None:
    serve(server, "--max-concurrency", "1")
    serve(server, "--max-concurrency", "1", "--num-warmups", "1")
    assert [body["prompt"] for body in server.bodies[:6]] == [body["prompt"] for body in server.bodies[7:]]


def test_concurrency_is_kept(server: FakeServer) -> None:
    serve(server, "--max-concurrency", "2", "--num-prompts", "12")
    assert server.most_at_once <= 2


def fail_sometimes(server: FakeServer, path: str, body: dict[str, Any]) -> list[bytes]:
    whole = [head(), chunked(completion(2))]
    replies = [
        whole,
        [answer(503, {"error": {"message": "full"}})],
        [head(), b"5\r\ndata:"],
        [head(), chunked([event({"error": {"message": "engine lost"}}), event("[DONE]")])],
        whole,
        [answer(503, {"error": {"message": "full"}})],
    ]
    return replies[(len(server.bodies) - 1) % len(replies)]


def test_failures_are_counted_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with running(FakeServer(fail_sometimes)) as server:
        assert serve(server, "--max-concurrency", "1") == 0
    out = capsys.readouterr().out
    assert "Successful requests:                     2" in out
    assert "Failed requests:                         4" in out
    assert "2 failed: HTTP 503: full" in out
    assert "1 failed: error event: engine lost" in out
    assert "1 failed: the server closed the connection in the middle of the response" in out


def test_all_failed_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with running(FakeServer(lambda *_: [answer(500, {"error": {"message": "no"}})])) as server:
        assert serve(server) == 1
    assert "6 failed: HTTP 500: no" in capsys.readouterr().out


def test_time_limit(capsys: pytest.CaptureFixture[str]) -> None:
    with running(FakeServer(lambda *_: [head(), *([b"2\r\n:\n\r\n"] * 5000)])) as server:
        assert serve(server, "--request-timeout", "0.2") == 1
    assert "6 failed: not finished after 0.2 s" in capsys.readouterr().out


def test_nobody_there() -> None:
    with pytest.raises(ApplianceError, match=r"127\.0\.0\.1:9 cannot be reached"):
        run_bench(["serve", "--port", "9"])


def test_ready_check(server: FakeServer) -> None:
    assert serve(server, "--ready-check-timeout-sec", "5") == 0
    assert server.bodies[0]["max_tokens"] == 1
    with running(FakeServer(lambda *_: [answer(503, {"error": {"message": "loading"}})])) as other:  # noqa: SIM117
        with pytest.raises(ApplianceError, match=r"not ready within 0\.1 s: HTTP 503: loading"):
            serve(other, "--ready-check-timeout-sec", "0.1")


def test_result_files(server: FakeServer, tmp_path: Path) -> None:
    flags = ["--result-dir", str(tmp_path), "--label", "a b", "--metadata", "cpu=zen3", "--goodput", "ttft:60000"]
    assert serve(server, "--save-detailed", "--plot", "--max-concurrency", "3", *flags) == 0
    (file,) = tmp_path.glob("*.json")
    assert file.name.startswith("a_b-infqps-concurrency3-fake-model-")
    record = json.loads(file.read_text())
    assert (record["completed"], record["total_output_tokens"], record["cpu"]) == (6, 24, "zen3")
    assert record["request_goodput"] == pytest.approx(record["request_throughput"])
    assert record["request_rate"] == "inf"
    assert [len(gaps) for gaps in record["itls"]] == [3] * 6
    assert record["generated_texts"][0] == "w0 w1 w2 w3 "
    assert record["p99_ttft_ms"] > 0
    ElementTree.fromstring(file.with_suffix(".svg").read_text())


def test_append_result(server: FakeServer, tmp_path: Path) -> None:
    for _ in range(2):
        serve(server, "--append-result", "--result-dir", str(tmp_path), "--result-filename", "runs.jsonl")
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert [json.loads(line)["completed"] for line in lines] == [6, 6]


def test_speculation_is_scraped(capsys: pytest.CaptureFixture[str]) -> None:
    scrapes = [COUNTERS.format(0, 0, 0, 0, 0), COUNTERS.format(10, 30, 15, 8, 7)]
    with running(FakeServer(metrics=scrapes)) as server:
        serve(server)
    assert "Acceptance length:                       2.50" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-prompts", "0"], "--num-prompts: 0 is out of range: at least 1"),
        (["--request-rate", "-1"], "--request-rate"),
        (["--percentile-metrics", "ttft,latency"], "'latency' is not one of ttft, tpot"),
        (["--metric-percentiles", "101"], "at most 100"),
        (["--goodput", "itl:5"], "'itl:5' is not METRIC:MS"),
        (["--extra-body", "[]"], "not a JSON object"),
        (["--metadata", "x"], "'x' is not NAME=VALUE"),
        (["--base-url", "box:8000"], "is not a URL"),
        (["--ramp-up-strategy", "linear"], "--ramp-up-start-rps and --ramp-up-end-rps are needed"),
        (["--dataset-name", "custom"], "needs a JSONL file"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)
def test_wrong_flags(flags: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        run_bench(["serve", "--model", "m", *flags])


def test_overview_and_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_bench(["--help"]) == 0
    assert "breadbox bench serve" in capsys.readouterr().out
    with pytest.raises(SettingsError, match="no bench command 'swerve'"):
        run_bench(["swerve"])


def test_key_from_the_environment(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    serve(server, "--num-prompts", "1")
    serve(server, "--num-prompts", "1", "--header", "authorization=Basic abc")
    assert [headers["authorization"] for headers in server.headers] == ["Bearer from-env", "Basic abc"]


def test_tokenizer_and_served_name(server: FakeServer, smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(server, "--model", str(smollm2), "--served-model-name", "alias", "--input-len", "20") == 0
    assert {body["model"] for body in server.bodies} == {"alias"}
    assert "no tokenizer" not in capsys.readouterr().err
    serve(server, "--skip-tokenizer-init")
    assert "lengths of prompts are estimated" in capsys.readouterr().err


def test_many_tokens_per_chunk_are_noted() -> None:
    result = make_result(1.0, 0.5, 0.5, 4)
    result.itls_s = [0.5]
    report = format_report(summarize(LoadResult(1.0, 2.0, [result])), ReportOptions())
    assert report.endswith("A chunk carries 2.0 tokens on average, so ITL is not the time of one token.")


def test_report_without_limits() -> None:
    report = format_report(summarize(LoadResult(0.0, 1.0, [])), ReportOptions(request_rate=math.inf))
    assert "configured" not in report
    assert "concurrency:" not in report


def test_command_line(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert main(["bench", "serve", "--base-url", server.url, "--num-prompts", "1", "--no-progress"]) == 0
    assert main(["bench", "serve", "--no-such-flag"]) == 2
    assert main(["bench", "serve", "--port", "9"]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("breadbox: error: ")]
    assert len(errors) == 2
    assert "cannot be reached" in errors[1]


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_help_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_bench([name, "--help"])
    assert f"breadbox bench {name}" in capsys.readouterr().out.split("examples:")[1]
