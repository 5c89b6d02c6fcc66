"""`bench drafts`: both ways give the same tokens, are timed in turn, and the table says what it brought."""

from __future__ import annotations

import dataclasses

import pytest

from appliance.bench.drafts import LOADS, DraftsBench, Load, PromptMaker, Result, format_drafts, generate_timed
from appliance.bench.speculation import SpeculationStats
from appliance.errors import ApplianceError
from engine.config import SpeculationConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from tests.unit.engine.builders import make_config, make_core, make_info, make_message
from tests.unit.engine.chain_runner import ChainRunner

EAGER = SpeculationConfig(num_speculative_tokens=3, prompt_lookup_min=1, adaptive=False)


class Prompts(PromptMaker):
    """The chain never repeats itself on purpose, but over ten tokens it has to."""

    def __init__(self) -> None:
        pass

    def make(self, load: Load, row: int) -> list[int]:
        return [row, 1, 2, 3]


def make_bench(runner: ChainRunner | None = None) -> DraftsBench:
    runner = runner or ChainRunner(make_info(vocab_size=10))
    return DraftsBench(make_config(speculation=EAGER), runner, Prompts(), output_len=40)


def test_with_and_without_in_turn() -> None:
    result = Result("copy", 2)
    bench = make_bench()
    bench.measure(LOADS[0], result)
    bench.measure(LOADS[0], result)
    assert len(result.rates_with) == len(result.rates_without) == 2
    assert result.stats is not None
    assert result.stats.num_drafts > 0
    assert result.as_json()["stats"]["num_drafts"] == result.stats.num_drafts


def test_tokens_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([({"0": [1, 2]}, 1.0), ({"0": [1, 3]}, 1.0)])

    def answer(core: EngineCore, requests: list[GenerateRequest]) -> tuple[dict[str, list[int]], float]:
        return next(answers)

    monkeypatch.setattr("appliance.bench.drafts.generate_timed", answer)
    with pytest.raises(ApplianceError, match="copy: the tokens with drafts are not those without"):
        make_bench().measure(LOADS[0], Result("copy", 1))


def test_a_refused_request_is_an_error() -> None:
    with pytest.raises(ApplianceError, match="the engine refused a request: "):
        generate_timed(make_core(), [make_message(300)])


def test_table() -> None:
    stats = SpeculationStats(10, 40, 30, [0.9])
    results = [
        Result("copy", 1, [50.0, 60.0, 55.0], [110.0, 111.0, 109.0], stats),
        Result("free, sampled", 16, [200.0], [198.0]),
    ]
    assert format_drafts(results, dataclasses.replace(EAGER, prompt_lookup_min=2)).splitlines() == [
        "n-gram drafts of up to 3 tokens, matches of 2 to 5; tokens are the same with and without",
        "load           rows  tok/s without  tok/s with  ratio   drafted  right",
        "copy              1           55.0       110.0   2.00        40    75%",
        "free, sampled    16          200.0       198.0   0.99         0      -",
    ]
