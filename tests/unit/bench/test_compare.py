"""`bench compare`: loads that are the same for all, interleaving, ratios, marks."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from appliance.bench.command import run_bench
from appliance.bench.comparison import runs as runs_module
from appliance.bench.comparison.chat_prompts import ChatPrompts
from appliance.bench.comparison.loads import make_fixed_load, make_rate_load
from appliance.bench.comparison.machine import Usage, Watch, find_server_pid, tree_memory_bytes, tree_seconds
from appliance.bench.comparison.runs import Run
from appliance.bench.comparison.table import as_markdown, as_text, footnotes, make_rows
from appliance.bench.datasets import Sample
from appliance.bench.prompt_tokenizer import EstimatingTokenizer, ModelTokenizer
from appliance.errors import SettingsError
from tests.unit.bench.fake_server import FakeServer, answer, running

IDLE = Usage(load_generator=0.1, stolen=0.0, server=1.5, other=0.05)
BUSY = Usage(load_generator=0.1, stolen=0.0, server=1.0, other=0.9)


def make_run(target: str, repetition: int, tok_s: float, ttft_ms: float, **facts: Any) -> Run:
    figures = {"output_tok_s": tok_s, "ttft_p50_ms": ttft_ms, "tpot_p50_ms": 10.0, "itl_p99_ms": 20.0}
    defaults: dict[str, Any] = {
        "load": "L1",
        "seed": 1,
        "figures": figures,
        "usage": IDLE,
        "num_completed": 4,
        "num_failed": 0,
        "num_prompt_tokens": 512,
        "num_output_tokens": 512,
        "num_wanted_tokens": 512,
        "errors": {},
        "is_spoilt": False,
    }
    return Run(target=target, repetition=repetition, **(defaults | facts))


RUNS = [
    make_run("box", 0, 100.0, 50.0),
    make_run("peer", 0, 50.0, 100.0),
    make_run("box", 1, 120.0, 40.0),
    make_run("peer", 1, 40.0, 120.0),
    make_run("box", 2, 110.0, 45.0),
    make_run("peer", 2, 10.0, 900.0, usage=BUSY, is_spoilt=True),
]

TABLE = """\
load  figure        box                peer                box vs peer
---------------------------------------------------------------------------
L1    output tok/s  110 (100–120)      45.0 (40.0–50.0)    2.50 (2.00–3.00) ×
      TTFT p50 ms   45.0 (40.0–50.0)   110 (100–120)       2.50 (2.00–3.00) ×
      TPOT p50 ms   10.0               10.0                1.00 ×
      ITL p99 ms    20.0               20.0                1.00 ×"""


def squeeze(text: str) -> list[str]:
    return [" ".join(line.strip("-").split()) for line in text.splitlines()]


def test_table() -> None:
    rows = make_rows(RUNS, ["box", "peer"])
    assert squeeze(as_text(rows, ["box", "peer"])) == squeeze(TABLE)
    notes = footnotes(RUNS, ["box", "peer"])
    assert notes[0].startswith("Median (lowest–highest) of 3 interleaved repetitions")
    assert notes[1].startswith("1 of 6 runs were spoilt")


def test_markdown_and_best_of_two_peers() -> None:
    runs = [make_run("box", 0, 100.0, 50.0), make_run("a", 0, 50.0, 25.0), make_run("b", 0, 20.0, 100.0)]
    lines = as_markdown(make_rows(runs, ["box", "a", "b"]), ["box", "a", "b"]).splitlines()
    assert lines[0] == "| load | figure | box | a | b | box vs a | box vs b | box vs best |"
    assert lines[2] == "| L1 | output tok/s | 100 | 50.0 | 20.0 | 2.00 × | 5.00 × | 2.00 × |"
    assert lines[3] == "| L1 | TTFT p50 ms | 50.0 | 25.0 | 100 | 0.50 × | 2.00 × | 0.50 × |"


def test_marks() -> None:
    spoilt = [make_run("box", 0, 100.0, 50.0), make_run("peer", 0, 50.0, 100.0, is_spoilt=True)]
    assert "50.0†" in as_markdown(make_rows(spoilt, ["box", "peer"]), ["box", "peer"])
    failed = [
        make_run("box", 0, 100.0, 50.0, num_output_tokens=500),
        make_run("peer", 0, 50.0, 100.0, num_failed=2, errors={"HTTP 503: full": 2}),
    ]
    assert "50.0‡" in as_markdown(make_rows(failed, ["box", "peer"]), ["box", "peer"])
    notes = "\n".join(footnotes(failed, ["box", "peer"]))
    assert "peer: 2 requests failed, such as: HTTP 503: full" in notes
    assert "box: generated 500 tokens where 512 were asked for" in notes
    nothing = [
        make_run("box", 0, 100.0, 50.0),
        make_run("peer", 0, 0.0, 0.0, figures={}, num_failed=4, num_completed=0),
    ]
    assert "| –‡ | – |" in as_markdown(make_rows(nothing, ["box", "peer"]), ["box", "peer"])


def test_unknown_use_is_told() -> None:
    runs = [make_run("box", 0, 1.0, 1.0, usage=Usage(0.1, 0.0, None, None))]
    assert any("unknown" in note for note in footnotes(runs, ["box"]))


def test_prompts_have_their_length(smollm2: Path) -> None:
    prompts = ChatPrompts(ModelTokenizer(smollm2), 1)
    assert [prompts.count(prompts.make(length)) for length in (128, 128, 2048)] == [128, 128, 2048]
    system = prompts.make_system(1024)
    chats = [prompts.extend(system, 32) for _ in range(2)]
    assert {prompts.count(chat) for chat in chats} == {prompts.count(system) + 32}
    assert chats[0] != chats[1]
    assert chats[0][0] == chats[1][0]


def test_loads_by_seed() -> None:
    one, same, other = (make_fixed_load("L2", ChatPrompts(EstimatingTokenizer(), seed)) for seed in (1, 1, 2))
    assert one == same
    assert not {str(c.messages) for c in one.phases[0].chats} & {str(c.messages) for c in other.phases[0].chats}
    assert (len(one.phases[0].chats), one.phases[0].max_concurrency) == (32, 8)
    prefix_load = make_fixed_load("L5", ChatPrompts(EstimatingTokenizer(), 1))
    assert [(p.name, len(p.chats), p.max_concurrency) for p in prefix_load.phases] == [
        ("distinct", 8, 4),
        ("cold", 1, 1),
        ("warm", 3, 1),
        ("shared", 16, 4),
    ]
    rated = make_rate_load(2.0, [Sample("a", 1, 5), Sample("b", 1, 6)], 1)
    assert rated.name == "R2"
    assert rated.phases[0].times[-1] == pytest.approx(1.0)


def compare(servers: Sequence[FakeServer], *flags: str) -> int:
    names = ("box", "peer", "third")
    targets = [f"{name}={server.url}" for name, server in zip(names, servers, strict=False)]
    return run_bench(["compare", *targets, "--skip-tokenizer-init", *flags])


def test_compare_interleaves_and_saves(server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.json"
    with running() as peer:
        flags = ["--loads", "L1,L5", "--repeat", "2", "--seed", "5", "--spoilt-cores", "100"]
        flags += ["--pid", f"box={os.getpid()}", "--extra-body", 'peer={"ignore_eos":null}']
        assert compare([server, peer], *flags, "--output-json", str(file)) == 0
    captured = capsys.readouterr()
    assert "box vs peer" in captured.out
    assert "TTFT warm ms" in captured.out
    order = [line.split(":")[0] for line in captured.err.splitlines() if "#" in line]
    first, second = ["L1 #1 box", "L1 #1 peer", "L5 #1 box", "L5 #1 peer"], ["L1 #2 peer", "L1 #2 box"]
    assert order == [*first, *second, "L5 #2 peer", "L5 #2 box"]
    record = json.loads(file.read_text())
    assert [run["seed"] for run in record["runs"]] == [5, 5, 6, 6, 7, 7, 8, 8]
    assert record["runs"][0]["num_output_tokens"] == 4 * 128
    assert "cores of" in record["machine"]
    ours, theirs = ([body["messages"] for body in one.bodies] for one in (server, peer))
    assert sorted(map(str, ours)) == sorted(map(str, theirs))
    assert server.bodies[-1]["ignore_eos"] is True
    assert "ignore_eos" not in peer.bodies[-1]
    assert server.bodies[-1]["temperature"] == 0


def test_compare_at_rates(server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [{"value": "Tell me about the weather in spring, please."}, {"value": "It is mild and wet. " * 4}]
    file = tmp_path / "s.json"
    file.write_text(json.dumps([{"conversations": turns}] * 8))
    flags = ["--only-rates", "--rates", "200", "--rate-requests", "8", "--repeat", "1", "--dataset-path", str(file)]
    assert compare([server], *flags, "--markdown") == 0
    out = capsys.readouterr().out
    assert "| R200 | TTFT p95 ms |" in out
    assert "| R200 | goodput req/s |" in out


class ScriptedWatch:
    """Somebody else is busy during the first two runs."""

    usages = [BUSY, BUSY, IDLE]

    def __init__(self, server_pid: int | None) -> None:
        pass

    def stop(self) -> Usage:
        return self.usages.pop(0)


def test_spoilt_rounds_are_tried_again(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(runs_module, "Watch", ScriptedWatch)
    file = tmp_path / "c.json"
    flags = ["--loads", "L4", "--repeat", "1", "--retry-spoilt", "5", "--seed", "1", "--output-json", str(file)]
    assert compare([server], *flags) == 0
    assert capsys.readouterr().err.count("spoilt †") == 2
    assert [run["seed"] for run in json.loads(file.read_text())["runs"]] == [3]


def test_server_that_fails_is_exit_status_1(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    with running(FakeServer(lambda *_: [answer(500, {"error": {"message": "no"}})])) as broken:
        assert compare([server, broken], "--loads", "L1", "--repeat", "1") == 1
    assert "peer: 4 requests failed, such as: HTTP 500: no" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["http://127.0.0.1:1", "box=http://127.0.0.1:2"], "'box' is used twice"),
        (["http://127.0.0.1:1", "--pid", "peer=1"], "there is no server 'peer', but box"),
        (["http://127.0.0.1:1", "--model", "box=m", "--pid", "box=x"], "'x' is not a process id"),
        (["http://127.0.0.1:1", "--model", "box=m", "--extra-body", "box=x"], "--extra-body: 'x' is not JSON"),
        (["http://127.0.0.1:1", "--loads", "L9"], "'L9' is not one of L1"),
        (["ftp://127.0.0.1"], "is not a URL"),
    ],
)
def test_wrong_flags(flags: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        run_bench(["compare", *flags])


def test_watch_knows_who_was_busy() -> None:
    watch = Watch(os.getpid())
    while watch._own_s + 0.05 > sum(os.times()[:2]):
        sum(range(10000))
    usage = watch.stop()
    assert usage.server is not None
    assert usage.server > 0
    assert usage.load_generator > 0
    assert Watch(None).stop().other is None
    assert tree_seconds(2**22 + 1) is None
    memory = tree_memory_bytes(os.getpid())
    assert memory is not None
    assert memory > 10**6


def test_server_is_found_by_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # The owner is ourselves, and the way up ends at once: our parents are not part of the server.
        assert find_server_pid(listening.getsockname()[1]) == os.getpid()
        port = listening.getsockname()[1]
    assert find_server_pid(port) is None
