"""Counts that outlive their process, other names for metrics, other buckets, the other exposition."""

from __future__ import annotations

import json
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from engine.core import EngineCore
from tests.unit.engine.builders import add, make_core, make_message, run


def totals(core: EngineCore) -> dict[str, float]:
    """Everything that may never go down, by series."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(core.metrics.render())
        if family.type in ("counter", "histogram")
        for sample in family.samples
    }


def work(core: EngineCore, num_requests: int) -> None:
    for _ in range(num_requests):
        add(core, make_message(10, max_tokens=3))
        run(core)


def test_a_new_process_goes_on_counting_where_the_last_one_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    first = make_core(counts_path=path)
    work(first, 2)
    seen = totals(first)
    second = make_core(counts_path=path)
    assert totals(second) == seen
    work(second, 3)
    after = totals(second)
    assert all(after[name] >= value for name, value in seen.items())
    (tokens,) = (value for name, value in after.items() if name.startswith("vllm:generation_tokens_total"))
    assert tokens == 5 * 3
    third = make_core(counts_path=path)
    assert totals(third) == after


def test_gauges_are_not_carried_over(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    first = make_core(counts_path=path)
    add(first, make_message(10))
    first.step()
    assert 'vllm:num_requests_running{engine="0",model_name="model"} 1.0' in first.metrics.render()
    assert (
        'vllm:num_requests_running{engine="0",model_name="model"} 0.0' in make_core(counts_path=path).metrics.render()
    )


def test_what_the_file_holds_is_written_without_a_scrape_too(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    core = make_core(counts_path=path)
    work(core, 1)
    core.metrics.keep()
    assert any("generation_tokens" in name for name in json.loads(path.read_text()))


def test_a_broken_file_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    for text in ("{", "[]", '{"a": "x"}', ""):
        path.write_text(text)
        assert set(totals(make_core(counts_path=path)).values()) == {0}


def test_an_unwritable_file_costs_only_the_keeping(tmp_path: Path) -> None:
    core = make_core(counts_path=tmp_path / "missing" / "counts.json")
    work(core, 1)
    assert "vllm:generation_tokens_total" in core.metrics.render()


def test_older_names_show_the_same_values() -> None:
    core = make_core(show_hidden_metrics=True)
    work(core, 2)
    text = core.metrics.render()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    pairs = {
        "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
        "vllm:gpu_prefix_cache_queries": "vllm:prefix_cache_queries",
        "vllm:gpu_prefix_cache_hits": "vllm:prefix_cache_hits",
        "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
    }
    for old, new in pairs.items():
        assert families[old].type == families[new].type
        assert [(s.labels, s.value) for s in families[old].samples] == [
            (s.labels, s.value) for s in families[new].samples
        ]
        assert all(sample.name.startswith(old) for sample in families[old].samples)
    assert "gpu_cache" not in make_core().metrics.render()


def test_buckets_can_be_replaced() -> None:
    core = make_core(custom_histogram_buckets={"e2e_request_latency_seconds": (0.01, 0.1)})
    bounds = [
        sample.labels["le"]
        for family in text_string_to_metric_families(core.metrics.render())
        for sample in family.samples
        if sample.name == "vllm:e2e_request_latency_seconds_bucket"
    ]
    assert bounds == ["0.01", "0.1", "+Inf"]


def test_openmetrics_keeps_the_names() -> None:
    core = make_core()
    work(core, 1)
    text = core.metrics.render(openmetrics=True)
    assert text.endswith("# EOF\n")
    assert "vllm_" not in text
    assert {family.name for family in parse_openmetrics(text)} >= {
        "vllm:generation_tokens",
        "vllm:iteration_tokens_total",
    }


def test_the_phases_of_the_start_are_shown() -> None:
    core = make_core()
    core.metrics.record_startup({"loading weights": 1.5})
    line = 'breadbox:startup_seconds{engine="0",model_name="model",phase="loading weights"} 1.5'
    assert line in core.metrics.render()
