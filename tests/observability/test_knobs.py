"""The knobs of watching: read, checked before anything starts, and passed on to the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.engine_process import make_engine_config
from appliance.errors import SettingsError
from appliance.preflight import find_problems
from appliance.settings import Settings, load_settings


def load(flag: str, text: str) -> Settings:
    return load_settings({flag: [text]}, {}).settings


def test_buckets_reach_the_engine_with_and_without_prefix(tmp_path: Path) -> None:
    text = '{"vllm:e2e_request_latency_seconds": [0.05, 1], "time_to_first_token_seconds": [0.01]}'
    given = load("custom_histogram_buckets", text).custom_histogram_buckets
    settings = Settings(
        custom_histogram_buckets=given, run_dir=tmp_path, model=(tmp_path / "m",), show_hidden_metrics=True
    )
    config = make_engine_config(settings, 0)
    assert config.custom_histogram_buckets == {
        "e2e_request_latency_seconds": (0.05, 1.0),
        "time_to_first_token_seconds": (0.01,),
    }
    assert config.show_hidden_metrics
    assert config.counts_path == tmp_path / "prometheus" / "engine-0.json"
    assert config.log_stats_interval_s == 10


@pytest.mark.parametrize(
    ("flag", "text", "problem"),
    [
        ("custom_histogram_buckets", '{"a": [2, 1]}', "a: a list of ascending numbers above 0 is expected"),
        ("custom_histogram_buckets", '{"a": []}', "a: a list of ascending numbers above 0 is expected"),
        ("custom_histogram_buckets", '{"a": ["1"]}', "a: a list of ascending numbers above 0 is expected"),
        ("custom_histogram_buckets", "[1]", "a JSON object is expected"),
        ("log_format", "xml", "'xml' is not one of text, json"),
        ("otlp_traces_endpoint", "collector:4318", "is not a URL such as http://host:4318"),
        ("admin_port", "0", "out of range"),
    ],
)
def test_wrong_values_are_told_in_one_line(flag: str, text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(flag, text)
    (told,) = raised.value.problems
    assert problem in told
    assert told.startswith("--" + flag.replace("_", "-"))


def test_an_unknown_histogram_is_a_problem_before_the_start() -> None:
    problems = find_problems(Settings(custom_histogram_buckets={"latency": [1]}))
    (told,) = (problem for problem in problems if "--custom-histogram-buckets" in problem)
    assert "latency is not one of e2e_request_latency_seconds, " in told
