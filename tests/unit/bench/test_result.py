"""Streams with scripted times become exactly these figures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from appliance.bench.http_client import RawStream
from appliance.bench.load import LoadResult
from appliance.bench.result import RequestResult, count_output_tokens, digest
from appliance.bench.statistics import describe, percentile, spread
from appliance.bench.summary import summarize


def chat(content: str | None = None, **more: Any) -> dict[str, Any]:
    finish = more.pop("finish", None)
    return {"choices": [{"delta": {"content": content, **more}, "finish_reason": finish}]}


def text(piece: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": piece, "finish_reason": finish}]}


def usage(prompt: int, output: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}


def stream(*events: tuple[float, Any], status: int = 200, started_s: float = 100.0, **more: Any) -> RawStream:
    raw = [(started_s + at_s, json.dumps(data).encode()) for at_s, data in events]
    return RawStream(started_s, status=status, events=[*raw, (started_s + 99, b"[DONE]")], **more)


def test_chat_times() -> None:
    events = [
        (0.25, chat(role="assistant")),
        (0.5, chat("a")),
        (0.75, chat(reasoning_content="b")),
        (1.5, chat("c")),
        (1.75, chat(finish="stop")),
        (9.0, usage(7, 6)),
    ]
    result = digest(stream(*events), 99.0, 5)
    assert result.is_success
    assert (result.ttft_s, result.itls_s, result.e2e_s) == (0.5, [0.25, 0.75], 1.75)
    assert (result.num_prompt_tokens, result.num_output_tokens, result.text) == (7, 6, "abc")
    assert result.tpot_s == (1.75 - 0.5) / 5
    assert result.queue_s == 1.0
    assert result.finish_reason == "stop"


def test_tool_call_is_output() -> None:
    result = digest(stream((0.5, chat(tool_calls=[{"index": 0}])), (1.0, chat(finish="tool_calls"))), 100.0, 5)
    assert (result.ttft_s, result.e2e_s) == (0.5, 1.0)


def test_completion_times() -> None:
    # The first chunk counts even without text (half a character), the one with the finish reason alone does not.
    events = [(0.5, text("")), (1.0, text("é")), (1.25, text("", "length")), (2.0, usage(3, 3))]
    result = digest(stream(*events), 100.0, 3)
    assert (result.ttft_s, result.itls_s, result.e2e_s) == (0.5, [0.5], 1.25)


def test_answer_without_text() -> None:
    result = digest(stream((0.5, chat(finish="stop")), (0.75, usage(3, 1))), 100.0, 3)
    assert result.is_success
    assert (result.ttft_s, result.e2e_s, result.num_output_tokens, result.tpot_s) == (0.5, 0.5, 1, None)


def test_without_usage_chunks_are_counted() -> None:
    result = digest(stream((0.5, chat("a")), (0.75, chat("b"))), 100.0, 11)
    assert (result.has_usage, result.num_prompt_tokens, result.num_output_tokens) == (False, 11, 2)


def test_missing_usage_can_be_counted() -> None:
    results = [digest(stream((0.5, chat("one two")), (0.75, chat(" three"))), 100.0, 1), digest(stream(), 100.0, 1)]
    count_output_tokens(results, lambda text: len(text.split()))
    assert [result.num_output_tokens for result in results] == [3, 0]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (stream(status=503, other=b'{"error": {"message": "loading"}}'), "HTTP 503: loading"),
        (stream(status=502, other=b"bad gateway"), "HTTP 502: bad gateway"),
        (stream(status=500), "HTTP 500: no reason given"),
        (stream((0.5, chat("a")), (0.6, {"error": {"message": "engine lost"}})), "error event: engine lost"),
        (stream((0.5, chat("a")), error="the connection broke: reset"), "the connection broke: reset"),
        (stream((0.5, chat("a")), (0.6, {"choices": 3})), "an event is no completion chunk"),
        (stream(other=b"<html>"), "the stream ended without a token: <html>"),
    ],
)
def test_failures(raw: RawStream, message: str) -> None:
    result = digest(raw, 100.0, 3)
    assert not result.is_success
    assert result.error is not None
    assert result.error.startswith(message)


def test_percentiles_are_numpys() -> None:
    import numpy as np

    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    facts = describe(values, (0, 12.5, 50, 90, 99, 100))
    for percent, value in facts.percentiles.items():
        assert value == pytest.approx(float(np.percentile(values, percent)), rel=1e-12)
    assert facts.mean == pytest.approx(float(np.mean(values)))
    assert facts.std == pytest.approx(float(np.std(values)))
    assert percentile([7.0], 99) == 7.0


def test_nothing_to_describe() -> None:
    assert describe([], (99,)).percentiles == {99: 0.0}
    assert spread([]) is None


def make_result(started_s: float, ttft_s: float, gap_s: float, tokens: int, error: str | None = None) -> RequestResult:
    return RequestResult(
        arrived_s=started_s,
        started_s=started_s,
        error=error,
        ttft_s=ttft_s,
        itls_s=[gap_s] * (tokens - 1),
        e2e_s=ttft_s + gap_s * (tokens - 1),
        num_prompt_tokens=10,
        num_output_tokens=tokens,
    )


def test_summary() -> None:
    results = [
        make_result(50.0, 0.25, 0.25, 4),
        make_result(50.5, 0.5, 0.5, 3),
        make_result(52.0, 0.5, 0.125, 5),
        make_result(52.0, 0.0, 0.0, 1, error="HTTP 503: full"),
    ]
    summary = summarize(LoadResult(50.0, 4.0, results), (50.0, 99.0), {"ttft": 300.0, "tpot": 250.0})
    assert (summary.num_completed, summary.num_failed) == (3, 1)
    assert (summary.num_prompt_tokens, summary.num_output_tokens) == (30, 12)
    assert (summary.request_throughput, summary.output_throughput, summary.total_throughput) == (0.75, 3.0, 10.5)
    assert summary.request_goodput == 0.25
    # Tokens at 0.25, 0.5, 0.75, 1.0 | 1.0, 1.5, 2.0 | 2.5, 2.625, 2.75, 2.875, 3.0.
    assert summary.peak_output_throughput == 5.0
    assert summary.peak_concurrency == 2
    assert summary.metrics["ttft"].mean == pytest.approx(1250 / 3)
    assert summary.metrics["tpot"].percentiles[50.0] == 250.0
    assert summary.metrics["itl"].count == 9
    assert summary.errors == {"HTTP 503: full": 1}


def test_summary_of_nothing() -> None:
    summary = summarize(LoadResult(0.0, 0.0, []))
    assert (summary.num_completed, summary.output_throughput, summary.peak_output_throughput) == (0, 0.0, 0.0)
