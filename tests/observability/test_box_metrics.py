"""What a box counts, through nginx and with two API workers: exactly, whatever dies, whoever scrapes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import httpx
import psutil
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from tests.box.running_box import RunningBox, gauge
from tests.observability.load import (
    MODEL,
    Series,
    check_none_decreased,
    complete,
    in_background,
    read_series,
    scrape,
    sum_of,
    total,
)
from tests.observability.prometheus import promtool

COUNTS = ("counter", "histogram")
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "breadbox:server_load")


def counts(box: RunningBox) -> Series:
    return read_series(scrape(box), COUNTS)


def increase(before: Series, after: Series, name: str, **labels: str) -> float:
    # Series with labels from requests begin with the first of these.
    return total(after, name, **labels) - sum_of(before, name, **labels)


def wait_idle(box: RunningBox) -> None:
    box.wait_until(lambda: not any(gauge(box, name) for name in GAUGES), 60)


def expect_increase(box: RunningBox, before: Series, expected: Mapping[str, float], **labels: str) -> None:
    """Wait until the names' series with these labels have grown so, and no further.

    A client has its answer before the process that gave it has counted it.
    """
    deadline = time.monotonic() + 20
    while True:
        after = counts(box)
        grown = {name: sum_of(after, name, **labels) - sum_of(before, name, **labels) for name in expected}
        if grown == expected or time.monotonic() > deadline:
            assert grown == expected
            return
        time.sleep(0.1)


def test_identities_through_nginx_and_two_workers(box: RunningBox) -> None:
    num, prompt, output = 10, 7, 5
    before = counts(box)
    for number in range(num):
        answer = complete(box, prompt=[1000 + 50 * number + i for i in range(prompt)], max_tokens=output)
        assert answer.json()["usage"]["completion_tokens"] == output
    expected = {
        "vllm:prompt_tokens_total": num * prompt,
        "vllm:generation_tokens_total": num * output,
        "vllm:request_success_total": num,
        "vllm:iteration_tokens_total_sum": num * (prompt + output),
        "vllm:iteration_tokens_total_count": num * output,
        "vllm:time_to_first_token_seconds_count": num,
        "vllm:inter_token_latency_seconds_count": num * (output - 1),
        "vllm:request_time_per_output_token_seconds_count": num,
        "vllm:e2e_request_latency_seconds_count": num,
        "vllm:request_queue_time_seconds_count": num,
        "vllm:request_prefill_time_seconds_count": num,
        "vllm:request_decode_time_seconds_count": num,
        "vllm:request_inference_time_seconds_count": num,
        "vllm:request_prompt_tokens_sum": num * prompt,
        "vllm:request_generation_tokens_sum": num * output,
        "vllm:request_params_n_count": num,
        "http_requests_total": num,
        "http_request_duration_seconds_count": num,
        "http_request_duration_highr_seconds_count": num,
    }
    expect_increase(box, before, expected)
    expect_increase(box, before, {"vllm:request_success_total": num}, finished_reason="length")
    expect_increase(box, before, {"http_requests_total": num}, handler="/v1/completions", status="2xx")


def test_a_stop_string_is_a_stop_and_no_abort(box: RunningBox) -> None:
    before = counts(box)
    text = complete(box, prompt="One, two, three,", max_tokens=20).json()["choices"][0]["text"]
    answer = complete(box, prompt="One, two, three,", max_tokens=20, stop=[text[3:6]]).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    wait_idle(box)
    for reason, num in {"stop": 1, "abort": 0}.items():
        expect_increase(box, before, {"vllm:request_success_total": num}, finished_reason=reason)


def test_refusals_are_counted_by_reason(box: RunningBox) -> None:
    before = counts(box)
    complete(box, temperature=9)
    complete(box, model="other")
    for reason, num in {"invalid": 1, "not_found": 1, "unavailable": 0}.items():
        expect_increase(box, before, {"breadbox:rejected_requests_total": num}, reason=reason)


async def leave_early(client: httpx.AsyncClient) -> None:
    request = {"model": MODEL, "prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/completions", json=request) as response:
        async for _ in response.aiter_lines():
            return


async def test_after_aborts_all_gauges_are_zero(box: RunningBox) -> None:
    before = await asyncio.to_thread(counts, box)
    async with httpx.AsyncClient(base_url=box.url, timeout=60) as client:
        await asyncio.gather(*(leave_early(client) for _ in range(8)))
    await asyncio.to_thread(wait_idle, box)
    expected = {"vllm:request_success_total": 8}
    await asyncio.to_thread(expect_increase, box, before, expected, finished_reason="abort")


async def test_fifty_scrapes_at_once_do_not_stop_a_stream(box: RunningBox) -> None:
    request = {"model": MODEL, "prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True}
    async with httpx.AsyncClient(base_url=box.url, timeout=60, limits=httpx.Limits(max_connections=60)) as client:
        gaps: list[float] = []
        async with client.stream("POST", "/v1/completions", json=request) as response:
            scrapes = [asyncio.create_task(client.get("/metrics")) for _ in range(50)]
            last = time.monotonic()
            lines = []
            async for line in response.aiter_lines():
                gaps.append(time.monotonic() - last)
                last = time.monotonic()
                lines.append(line)
        answers = await asyncio.gather(*scrapes)
    assert lines[-2:] == ["data: [DONE]", ""]
    assert {answer.status_code for answer in answers} == {200}
    assert all("vllm:generation_tokens_total" in answer.text for answer in answers)
    assert max(gaps) < 20  # also on a machine that others keep busy


def test_the_exposition_is_valid(box: RunningBox) -> None:
    result = promtool("check", "metrics", stdin=scrape(box))
    # What it dislikes are the names, which are vLLM's.
    lints = [line for line in result.stderr.splitlines() if "contain ':'" not in line and '"_total" suffix' not in line]
    assert (lints, result.stdout) == ([], "")
    accept = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
    answer = httpx.get(f"{box.url}/metrics", headers=accept, timeout=20)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert {family.name for family in parse_openmetrics(answer.text)} >= {"vllm:generation_tokens", "http_requests"}
    assert httpx.get(f"{box.url}/metrics", timeout=20).headers["content-type"].startswith("text/plain; version=0.0.4")


def test_every_series_has_bounded_labels(box: RunningBox) -> None:
    before = len(read_series(scrape(box)))
    for number in range(20):
        httpx.get(f"{box.url}/secret-{number}", timeout=20)
        httpx.request(f"METHOD{number}", f"{box.url}/v1/models", timeout=20)
    text = scrape(box)
    assert "secret-" not in text
    assert "METHOD" not in text
    assert len(read_series(text)) < before + 80


def settled(box: RunningBox) -> Series:
    """The counts, once two looks in a row find the same."""
    last, now = Series(), counts(box)
    while now != last:
        time.sleep(0.3)
        last, now = now, counts(box)
    return now


def kill_and_wait(box: RunningBox, victim: psutil.Process, program: str) -> None:
    restarts = total(counts(box), "breadbox:restarts_total", program=program)
    victim.kill()

    def is_back() -> bool:
        try:
            return total(counts(box), "breadbox:restarts_total", program=program) > restarts
        except (httpx.HTTPError, AssertionError):
            return False

    box.wait_until(is_back, 60)


def watch_counts(box: RunningBox, seconds: float, last: Series) -> Series:
    """Scrape for some time; returns what was seen last."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            series = counts(box)
        except (httpx.HTTPError, AssertionError):
            continue  # the scrape met the one that was killed
        check_none_decreased(last, series)
        last = last | series
    return last


def test_a_killed_worker_takes_no_count_with_it(box: RunningBox) -> None:
    finished: list[Any] = []
    before = counts(box)

    def ask() -> None:
        answer = complete(box, max_tokens=8)
        if answer.status_code == 200:  # nginx says 502 for the one that met the kill
            finished.append(answer.json()["usage"]["completion_tokens"])

    with in_background(ask, ask):
        last = watch_counts(box, 1, before)
        (_, *workers) = box.find("gunicorn")
        kill_and_wait(box, workers[0], "api-worker")
        last = watch_counts(box, 2, last)
    wait_idle(box)
    after = settled(box)
    check_none_decreased(last, after)
    num_ended = increase(before, after, "vllm:request_success_total")
    num_aborted = increase(before, after, "vllm:request_success_total", finished_reason="abort")
    assert num_ended - num_aborted >= len(finished) > 0
    assert num_aborted <= 2  # those of the killed worker, at most one a client
    assert increase(before, after, "vllm:generation_tokens_total") >= sum(finished)
    # The killed worker may have had no time to count the last one that it answered.
    assert len(finished) - 1 <= increase(before, after, "http_requests_total", status="2xx") <= len(finished)


def test_a_killed_engine_takes_no_count_with_it_and_requests_go_on(box: RunningBox) -> None:
    before = counts(box)
    with in_background(*[lambda: complete(box, max_tokens=200)] * 3):  # so that there always is one in flight
        last = watch_counts(box, 2, before)
        (engine,) = box.find("engine", "--index 0")
        kill_and_wait(box, engine, "engine-0")
        box.wait_until(lambda: "vllm:num_requests_running" in scrape(box), 60)
        last = watch_counts(box, 2, last)
    wait_idle(box)
    after = counts(box)
    check_none_decreased(last, after)
    assert increase(before, after, "breadbox:resumed_requests_total") >= 1
    assert gauge(box, "breadbox:engine_ready") == 1
