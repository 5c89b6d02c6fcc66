"""The metrics that dashboards read: names, labels, buckets, and identities after known traffic."""

from __future__ import annotations

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.core import EngineCore
from engine.metrics import EngineMetrics
from tests.unit.engine.builders import add, make_config, make_core, make_info, make_message, run, value_of

GAUGES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
}
COUNTERS = {
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:prompt_tokens_by_source",
    "vllm:prompt_tokens_cached",
    "vllm:prompt_tokens_cached_by_source",
    "vllm:generation_tokens",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:request_success",
}
HISTOGRAMS = {
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_params_max_tokens",
    "vllm:request_prefill_kv_computed_tokens",
    "vllm:request_num_preemptions",
    "vllm:iteration_tokens_total",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
}


def family_names(core: EngineCore, kind: str) -> set[str]:
    return {family.name for family in text_string_to_metric_families(core.metrics.render()) if family.type == kind}


def test_all_series_exist_from_the_start_with_zero():
    core = make_core()
    assert family_names(core, "gauge") == GAUGES
    assert family_names(core, "counter") == COUNTERS
    assert family_names(core, "histogram") == HISTOGRAMS
    for family in text_string_to_metric_families(core.metrics.render()):
        assert family.samples, family.name
        expected = 1 if family.name == "vllm:cache_config_info" else 0
        assert {sample.value for sample in family.samples} == {expected}, family.name


def test_every_series_has_model_and_engine_label():
    core = EngineCore(make_config(served_model_name="smol"), make_core()._runner)
    for family in text_string_to_metric_families(core.metrics.render()):
        for sample in family.samples:
            assert (sample.labels["model_name"], sample.labels["engine"]) == ("smol", "0")


def test_the_time_of_creation_is_not_exposed():
    assert "_created" not in make_core().metrics.render()


def test_finish_reasons_and_waiting_reasons_are_there_before_they_happen():
    text = make_core().metrics.render()
    for reason in ("stop", "length", "abort", "error", "repetition"):
        assert f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="model"}} 0.0' in text
    for reason in ("capacity", "deferred"):
        labels = f'{{engine="0",model_name="model",reason="{reason}"}}'
        assert f"vllm:num_requests_waiting_by_reason{labels} 0.0" in text


@pytest.mark.parametrize(
    ("name", "first", "last", "count"),
    [
        ("time_to_first_token_seconds", "0.001", "2560.0", 22),
        ("inter_token_latency_seconds", "0.01", "80.0", 19),
        ("e2e_request_latency_seconds", "0.3", "7680.0", 21),
        ("iteration_tokens_total", "1.0", "16384.0", 13),
        ("request_num_preemptions", "1.0", "20.0", 7),
        ("request_prompt_tokens", "1.0", "200.0", 8),
    ],
)
def test_buckets(name, first, last, count):
    families = text_string_to_metric_families(make_core().metrics.render())
    (family,) = [family for family in families if family.name == f"vllm:{name}"]
    bounds = [sample.labels["le"] for sample in family.samples if sample.name.endswith("_bucket")]
    assert (bounds[0], bounds[-2], bounds[-1], len(bounds) - 1) == (first, last, "+Inf", count)


def test_the_cache_configuration_is_told():
    text = make_core(info=make_info(num_blocks=50)).metrics.render()
    (line,) = [line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")]
    for fact in ('block_size="4"', 'num_gpu_blocks="50"', 'kv_cache_size_tokens="200"', 'enable_prefix_caching="True"'):
        assert fact in line
    assert 'kv_cache_max_concurrency="1.00"' in line


def test_identities_after_ten_requests_one_after_the_other():
    core = make_core()
    for _ in range(10):
        add(core, make_message(9, max_tokens=6))
        run(core)
    for name in (
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_time_per_output_token_seconds",
        "request_prompt_tokens",
        "request_num_preemptions",
    ):
        assert value_of(core, f"{name}_count") == 10, name
    assert value_of(core, "inter_token_latency_seconds_count") == 10 * 5
    assert value_of(core, "prompt_tokens_total") == 10 * 9
    assert value_of(core, "generation_tokens_total") == 10 * 6
    assert value_of(core, "iteration_tokens_total_sum") == 10 * (9 + 6)
    assert value_of(core, "iteration_tokens_total_count") == 10 * 6
    assert value_of(core, "request_success_total", finished_reason="length") == 10
    assert value_of(core, "request_prompt_tokens_sum") == 90
    assert value_of(core, "request_generation_tokens_sum") == 60
    assert value_of(core, "request_params_max_tokens_sum") == 60


def test_cached_prompt_tokens_are_told_apart():
    core = make_core()
    prompt = list(range(10))
    for _ in range(2):
        add(core, make_message(prompt))
        run(core)
    assert value_of(core, "prompt_tokens_total") == 20
    assert value_of(core, "prompt_tokens_cached_total") == 8
    assert value_of(core, "prompt_tokens_by_source_total", source="local_cache_hit") == 8
    assert value_of(core, "prompt_tokens_by_source_total", source="local_compute") == 12
    assert value_of(core, "prefix_cache_queries_total") == 20
    assert value_of(core, "prefix_cache_hits_total") == 8
    assert value_of(core, "request_prefill_kv_computed_tokens_sum") == 12
    assert value_of(core, "iteration_tokens_total_sum") == 28


def test_requests_that_may_not_read_the_cache_are_not_queries():
    core = make_core()
    add(core, make_message(10, prompt_logprobs=0))
    run(core)
    assert value_of(core, "prefix_cache_queries_total") == 0


def test_gauges_follow_the_load():
    core = make_core(max_num_seqs=2)
    messages = [make_message(8, max_tokens=9) for _ in range(5)]
    add(core, *messages)
    assert value_of(core, "num_requests_waiting") == 5
    core.step()
    assert value_of(core, "num_requests_running") == 2
    assert value_of(core, "num_requests_waiting") == 3
    assert value_of(core, "num_requests_waiting_by_reason", reason="capacity") == 3
    assert value_of(core, "kv_cache_usage_perc") == 4 / 64
    core.abort([message.request_id for message in messages])
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert value_of(core, name) == 0


def test_aborted_requests_are_counted_and_have_no_stages_that_they_did_not_reach():
    core = make_core(max_num_seqs=1)
    running, waiting = make_message(8), make_message(8)
    add(core, running, waiting)
    core.step()
    core.abort([running.request_id, waiting.request_id])
    assert value_of(core, "request_success_total", finished_reason="abort") == 2
    assert value_of(core, "e2e_request_latency_seconds_count") == 2
    assert value_of(core, "request_queue_time_seconds_count") == 1
    assert value_of(core, "request_prefill_time_seconds_count") == 1


def test_preemptions_are_counted_and_what_is_computed_again_is_not():
    core = make_core(info=make_info(num_blocks=6, max_model_len=24), enable_prefix_caching=False)
    add(core, make_message(8, max_tokens=12), make_message(8, max_tokens=12))
    run(core)
    assert value_of(core, "num_preemptions_total") == 1
    assert value_of(core, "request_num_preemptions_sum") == 1
    assert value_of(core, "prompt_tokens_total") == 16
    assert value_of(core, "iteration_tokens_total_sum") == 16 + 24
    assert value_of(core, "time_to_first_token_seconds_count") == 2


def test_a_resumed_request_counts_only_what_is_new():
    core = make_core()
    add(core, make_message(8, max_tokens=6, resumed_token_ids=[1, 2]))
    run(core)
    assert value_of(core, "generation_tokens_total") == 4
    assert value_of(core, "iteration_tokens_total_sum") == 4
    assert value_of(core, "inter_token_latency_seconds_count") == 3
    assert value_of(core, "e2e_request_latency_seconds_count") == 1
    assert value_of(core, "request_success_total", finished_reason="length") == 1
    for name in ("prompt_tokens_total", "time_to_first_token_seconds_count", "request_prefill_time_seconds_count"):
        assert value_of(core, name) == 0, name


def test_refused_requests_are_not_the_engines():
    core = make_core()
    core.add(make_message([]))
    assert value_of(core, "request_success_total", finished_reason="error") == 0


def test_latency_starts_at_the_arrival_that_the_api_tells():
    core = make_core()
    add(core, make_message(8, arrival_time=time.monotonic() - 100))
    run(core)
    assert 100 <= value_of(core, "time_to_first_token_seconds_sum") < 160
    assert 100 <= value_of(core, "e2e_request_latency_seconds_sum") < 160
    assert value_of(core, "request_queue_time_seconds_sum") < 60


def test_an_arrival_in_the_future_is_now():
    core = make_core()
    add(core, make_message(8, arrival_time=time.monotonic() + 1000))
    run(core)
    assert value_of(core, "time_to_first_token_seconds_sum") >= 0


def test_several_engines_live_in_one_process():
    first, second = make_core(), make_core()
    add(first, make_message(3))
    run(first)
    assert value_of(first, "generation_tokens_total") == 4
    assert value_of(second, "generation_tokens_total") == 0


def test_metrics_can_be_made_before_the_core():
    config, info = make_config(), make_info()
    metrics = EngineMetrics(config, info, engine="3")
    EngineCore(config, make_core(info=info)._runner, metrics)
    assert 'vllm:num_requests_running{engine="3",model_name="model"} 0.0' in metrics.render()
