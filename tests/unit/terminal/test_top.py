"""top: the figures, how they are drawn, once and live."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from appliance import cli
from appliance.doctor.samples import Samples
from appliance.terminal.box_load import Scrape, compute_load, quantile
from appliance.terminal.load_view import LoadView, sparkline
from appliance.terminal.screen import Screen
from tests.unit.bench.fake_server import running
from tests.unit.terminal.people_server import MODEL, READY, PeopleServer, exposition
from tests.unit.terminal.terminals import running_in_terminal

TTFT = "vllm:time_to_first_token_seconds"


@pytest.fixture
def server() -> Iterator[PeopleServer]:
    with running(PeopleServer(metrics=[exposition(), exposition(tokens=50, ttft=(1, 2, 2))])) as server:
        assert isinstance(server, PeopleServer)
        yield server


def scrape(at_s: float, **figures: object) -> Scrape:
    return Scrape(at_s, Samples.parse(exposition(**figures)))  # type: ignore[arg-type]


def test_figures() -> None:
    first, last, now = scrape(0, tokens=0), scrape(8, tokens=100), scrape(10, tokens=150, ttft=(5, 10, 10))
    load = compute_load("http://box", {"status": "ready", "models": [READY]}, now, last, first)
    (model,) = load.models
    assert (load.status, load.version, model.name) == ("ready", "9.9.9", MODEL)
    assert (model.running, model.waiting, model.kv_usage) == (1, 2, 0.5)
    assert (model.output_tokens_per_s, model.prompt_tokens_per_s) == (25, 0)
    assert model.ttft_s[0] == pytest.approx(0.1)
    assert model.ttft_s[1] == pytest.approx(0.1 + 0.9 * 0.9)
    assert model.itl_s == (None, None, None)
    # Nothing in the window: no share of hits.
    assert model.prefix_hit_rate is None


@pytest.mark.parametrize(
    ("counts", "q", "value"), [((0, 0, 0), 0.5, None), ((2, 2, 2), 0.5, 0.05), ((0, 0, 4), 0.99, 1.0)]
)
def test_quantiles(counts: tuple[int, int, int], q: float, value: float | None) -> None:
    assert quantile(Samples.parse(exposition(ttft=counts)), TTFT, q) == (value and pytest.approx(value))


def test_an_engine_that_is_away_shows_its_phase() -> None:
    entry = {"model": "other", "phase": "loading weights", "percent": 40.0, "is_ready": False}
    load = compute_load("http://box", {"status": "not ready", "models": [entry]}, scrape(1), scrape(0), scrape(0))
    assert load.models[0].running is None
    text = "\n".join(LoadView(Screen(is_terminal=False)).draw(load))
    assert "not ready" in text
    assert "loading weights 40 %" in text
    assert "\x1b" not in text


def test_sparkline() -> None:
    assert sparkline([0, 1, 4, 8], 3) == "▁▄█"
    assert sparkline([0, 0], 10) == "  "


def test_once(server: PeopleServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--url", server.url, "--interval", "0.1"]) == 0
    out = capsys.readouterr().out
    for words in ("ready", "9.9.9", "1 running, 2 waiting", "50.0 %", "prefix hits 25 %", "3 preemptions", "99 % "):
        assert words in out
    assert "\x1b" not in out
    assert cli.main(["top", "--json", "--url", server.url, "--interval", "0.1"]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["running"] == 1


def test_once_where_the_box_is_not_ready(server: PeopleServer, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--once", "--url", server.url, "--interval", "0.1"]
    server.report = None
    assert cli.main(["top", *flags]) == 1
    assert "starting" in capsys.readouterr().out
    assert cli.main(["top", "--once", "--url", "http://127.0.0.1:1"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    server.report = {"status": "ready", "models": [READY]}
    server.metrics = ["vllm:broken{ 1\n"]
    assert cli.main(["top", *flags]) == 1
    assert "/metrics cannot be read" in capsys.readouterr().err


def test_live(server: PeopleServer) -> None:
    with running_in_terminal("top", "--url", server.url, "--interval", "0.1") as terminal:
        terminal.expect("\x1b[?1049h")  # a screen of its own
        terminal.expect(MODEL)
        terminal.expect("█")
        server.report = None
        terminal.expect("starting")
        server.report = {"status": "ready", "models": [READY]}
        terminal.expect(MODEL)
        terminal.type("q")
        assert terminal.wait() == 0
        assert terminal.shown.endswith("\x1b[?25h\x1b[?1049l")
    with running_in_terminal("top", "--url", server.url) as terminal:
        terminal.expect(MODEL)
        terminal.type("\x03")
        assert terminal.wait() == 0
