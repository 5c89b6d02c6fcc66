"""The short form of `make chaos`; CHAOS_MINUTES (and CHAOS_SEED) make it longer."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.chaos.answers import BrokenAnswerError, read_stream
from tests.chaos.campaign import run_campaign
from tests.chaos.cases import make_cases
from tests.chaos.timeline import GRACE_S, Timeline

MINUTES = float(os.environ.get("CHAOS_MINUTES", "1"))
SEED = int(os.environ.get("CHAOS_SEED", "8"))


@pytest.mark.box
@pytest.mark.exact
@pytest.mark.timeout(60 * MINUTES + 1200)
def test_whatever_breaks_every_answer_comes_and_is_right(shipped_model: Path) -> None:
    report = run_campaign(shipped_model, MINUTES, SEED, concurrency=8, say=print)
    print(report.describe())
    assert report.is_clean, report.describe()
    assert report.load.tally.num_answered > 0
    assert report.faults


def test_the_same_seed_asks_the_same() -> None:
    assert make_cases(3, "m") == make_cases(3, "m")
    assert make_cases(3, "m") != make_cases(4, "m")


def test_a_loss_is_excused_as_long_as_a_replaced_program_may_live(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    timeline = Timeline()
    with timeline.fault("short", takes_connections=True):
        pass
    assert timeline.excuses_loss(now_s + GRACE_S - 1)
    assert not timeline.excuses_loss(now_s + GRACE_S)
    with timeline.fault("long", takes_connections=True, lingers_s=8.0):
        pass
    assert timeline.excuses_loss(now_s + GRACE_S + 7)
    assert not timeline.excuses_loss(now_s + GRACE_S + 8)


def test_how_a_stream_was_cut_does_not_matter() -> None:
    one = 'data: {"id": "1", "choices": [{"index": 0, "delta": {"content": "ab"}, "finish_reason": "stop"}]}\n\n'
    two = (
        'data: {"id": "2", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}\n\n'
        ": keep-alive\n\n"
        'data: {"id": "2", "choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}]}\n\n'
    )
    end = "data: [DONE]\n\n"
    assert read_stream(one + end) == read_stream(two + end)
    assert read_stream(one + end) != read_stream(one.replace("ab", "ac") + end)
    with pytest.raises(BrokenAnswerError, match="no end"):
        read_stream(one)
    with pytest.raises(BrokenAnswerError, match="error event"):
        read_stream('data: {"error": {"message": "x", "type": "server_error"}}\n\n' + end)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("the engine did not come back within 60 s", "service_unavailable"),
        ("the engine failed while it worked on this request", "server_error"),
    ],
)
def test_a_failed_response_is_a_refusal_only_where_the_engine_was_away(message: str, kind: str) -> None:
    failed = {"type": "response.failed", "response": {"error": {"code": "server_error", "message": message}}}
    with pytest.raises(BrokenAnswerError, match="a failed response") as found:
        read_stream(f"event: response.failed\ndata: {json.dumps(failed)}\n\n")
    assert found.value.error == {"type": kind}
