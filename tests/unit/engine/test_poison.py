"""Requests that make engines fail: found with as few engines as possible, and nobody else is blamed."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import autopsy
from engine.autopsy import Death, examine, leave_note
from engine.journal import Activity, InHand, Journal, make_key, read_journal
from engine.messages import GenerateRequest
from engine.step_allowance import FIRST_FACTOR, StepAllowance
from engine.suspects import REFUSED_FOR_S, Suspects, Suspicion
from tests.unit.engine.builders import VOCAB_SIZE, make_message
from tests.unit.engine.chain_runner import generate
from tests.unit.engine.lives import Lives, outside_kills


def make_requests(count: int, **fields: object) -> list[GenerateRequest]:
    return [make_message(3 + number % 9, f"r{number}", max_tokens=20, **fields) for number in range(count)]


def check(lives: Lives, requests: list[GenerateRequest], poison: set[str]) -> None:
    """Only the poison failed, and all others' tokens are as they should be."""
    assert {name for name, output in lives.ended.items() if output.is_poison} == poison
    for request in requests:
        if request.request_id not in poison:
            right = generate(request.prompt_token_ids, request.sampling.max_tokens, VOCAB_SIZE)
            assert lives.tokens[request.request_id] == right


@pytest.mark.parametrize("at", [0, 7])
def test_one_poison_among_many_costs_two_engines(tmp_path: Path, at: int) -> None:
    requests = make_requests(20)
    lives = Lives(tmp_path / "journal", requests, lambda name, num_tokens: name == "r13" and num_tokens == at)
    lives.run()
    check(lives, requests, {"r13"})
    assert lives.faults == 2


def test_a_poison_alone_costs_two_engines(tmp_path: Path) -> None:
    lives = Lives(tmp_path / "journal", make_requests(1), lambda name, num_tokens: True)
    lives.run()
    assert lives.faults == 2
    assert lives.ended["r0"].finish_reason == "error"


def test_each_of_three_costs_one_engine_more(tmp_path: Path) -> None:
    requests = make_requests(12)
    lives = Lives(tmp_path / "journal", requests, lambda name, num_tokens: name in {"r3", "r5", "r8"})
    lives.run()
    check(lives, requests, {"r3", "r5", "r8"})
    assert lives.faults == 4


def test_suspects_are_alone_in_their_steps_and_others_take_turns(tmp_path: Path) -> None:
    requests = make_requests(4)
    lives = Lives(tmp_path / "journal", requests, lambda name, num_tokens: name == "r3" and num_tokens == 2)
    lives.run()
    after_the_first = lives.rows[lives.rows.index(next(rows for rows in lives.rows if len(rows) == 1)) :]
    assert {len(rows) for rows in after_the_first[:5]} == {1}  # nobody is cleared yet
    assert any(len(rows) == 3 for rows in after_the_first)  # the cleared ones go on together


def test_the_same_content_under_another_name_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    poison = make_message(5, "first", max_tokens=9, seed=1)
    Lives(path, [poison], lambda name, num_tokens: True).run()
    again = msgspec.structs.replace(
        poison, request_id="second", sampling=msgspec.structs.replace(poison.sampling, seed=2)
    )
    innocent = make_message(5, "third", max_tokens=9)
    lives = Lives(path, [again, innocent])
    lives.run()
    assert lives.faults == 0
    check(lives, [again, innocent], {"second"})


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    poison=st.sets(st.integers(0, 9), max_size=2),
    at=st.integers(0, 12),
    times=st.integers(0, 12),
    max_num_seqs=st.sampled_from([1, 3, 64]),
)
def test_nobody_is_blamed_for_what_comes_from_outside(
    tmp_path_factory: pytest.TempPathFactory, seed: int, poison: set[int], at: int, times: int, max_num_seqs: int
) -> None:
    requests = make_requests(10)
    names = {f"r{number}" for number in poison}
    lives = Lives(
        tmp_path_factory.mktemp("lives") / "journal",
        requests,
        lambda name, num_tokens: name in names and num_tokens == at,
        outside_kills(seed, 30, times),
        max_num_seqs=max_num_seqs,
        num_gpu_blocks_override=400,
    )
    lives.run()
    check(lives, requests, names)
    assert lives.faults <= 2 * len(names)


def test_a_cleared_suspect_that_is_there_again_stays_alone_until_it_is_found(tmp_path: Path) -> None:
    """It fails late the second time: it was cleared by then, so a third engine is needed."""
    places = iter([3, 15, 15])
    place = next(places)

    def kills(name: str, num_tokens: int) -> bool:
        nonlocal place
        if name != "r2" or num_tokens != place:
            return False
        place = next(places, 15)
        return True

    requests = make_requests(6)
    lives = Lives(tmp_path / "journal", requests, kills)
    lives.run()
    check(lives, requests, {"r2"})
    assert lives.faults == 3


# The journal and what is read from it


def test_a_journal_says_what_is_in_hand(tmp_path: Path) -> None:
    path = tmp_path / "engine.journal"
    journal = Journal(path, allowance_s=3.0)
    first = read_journal(path)
    assert first is not None
    assert (first.activity, first.in_hand, first.allowance_s) == (Activity.LOADING, [], 3.0)
    journal.work([(make_key("a"), 5), (make_key("b"), 0)], 7.5)
    state = read_journal(path)
    assert state is not None
    assert (state.activity, state.allowance_s, state.beat) == (Activity.WORKING, 7.5, first.beat + 1)
    assert [(item.key, item.num_output_tokens) for item in state.in_hand] == [(make_key("a"), 5), (make_key("b"), 0)]
    journal.hold(())
    journal.idle()
    state = read_journal(path)
    assert state is not None
    assert (state.in_hand, state.activity, state.beat) == ([], Activity.IDLE, first.beat + 2)


def test_what_is_no_journal_is_none(tmp_path: Path) -> None:
    path = tmp_path / "engine.journal"
    assert read_journal(path) is None
    path.write_bytes(b"\0" * 100)
    assert read_journal(path) is None
    assert examine(path) is None


def test_an_engine_that_ended_in_good_order_has_not_died(tmp_path: Path) -> None:
    path = tmp_path / "engine.journal"
    Journal(path).close()
    assert examine(path) is None


def test_a_death_without_a_note_came_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "engine.journal"
    Journal(path).work([(make_key("a"), 1)], 1.0)
    death = examine(path)
    assert death is not None
    assert death.fault is None
    leave_note(path, "a fault")
    death = examine(path)
    assert death is not None
    assert death.fault == "a fault"
    death = examine(path)  # a note is read once
    assert death is not None
    assert death.fault is None


def test_what_the_kernel_kills_for_want_of_memory_is_its_own_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.journal"
    Journal(path).work([(make_key("a"), 1)], 1.0)
    state = read_journal(path)
    assert state is not None
    monkeypatch.setattr(autopsy, "count_oom_kills", lambda: state.num_oom_kills + 1)
    death = examine(path)
    assert death is not None
    assert death.fault == autopsy.OUT_OF_MEMORY


def test_kept_suspects_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    path = tmp_path / "suspects"
    path.write_text("{")
    assert Suspects(path).find(make_key("a")) is None


def test_a_step_may_take_as_long_as_steps_do() -> None:
    kept: dict[int, float] = {}
    allowance = StepAllowance(10.0, keep=kept.__setitem__)
    assert allowance.allow(512) == FIRST_FACTOR * 10.0  # nothing is known
    allowance.observe(1, 0.5)
    assert allowance.allow(512) > 10.0 + 512 * 0.5  # one that is larger than all before
    allowance.observe(512, 40.0)
    assert allowance.allow(600) > 10.0 + 40.0
    assert allowance.allow(1) < 10.0 + 5.0
    learned = [kept.get(size, 0.0) for size in range(24)]
    assert StepAllowance(10.0, learned).allow(600) == allowance.allow(600)  # the next engine knows
    assert StepAllowance(10.0, [0.0, 0.0, 0.0, 7.0]).allow(1) > 10.0 + 7.0
    assert StepAllowance(0.0).allow(5) == 0


def test_a_journal_keeps_what_steps_took_for_the_next_engine(tmp_path: Path) -> None:
    path = tmp_path / "engine.journal"
    assert Journal(path).step_seconds == ()
    Journal(path).keep_seconds(3, 1.5)
    assert Journal(path).step_seconds[3] == 1.5
    assert Journal(path).step_seconds[3] == 1.5


def test_content_with_any_parameter_has_a_digest(tmp_path: Path) -> None:
    suspects = Suspects()
    request = make_message(5, logit_bias={3: 1.0, 1: 2.0}, bad_words_token_ids=[[1]], logprob_token_ids=[4])
    key = make_key(request.request_id)
    for _ in range(2):
        suspects.take_death(Death("crashed", [InHand(key, 0)]))
        assert suspects.must_refuse(key, request) == (suspects.find(key) or Suspicion()).is_convicted
    assert suspects.must_refuse(make_key("another"), request)


def test_a_verdict_lasts_its_time_whatever_the_wall_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, request = tmp_path / "suspects", make_message(5)
    key = make_key(request.request_id)
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(time, "time", lambda: 0.0)  # may be set at any moment
    suspects = Suspects(path)
    for _ in range(2):
        suspects.take_death(Death("crashed", [InHand(key, 0)]))
        suspects.must_refuse(key, request)
    now_s += REFUSED_FOR_S - 1
    assert Suspects(path).must_refuse(make_key("another"), request)
    now_s += 1
    assert not Suspects(path).must_refuse(make_key("another"), request)
    now_s = 5.0  # the machine was started anew
    fresh = Suspects(path)
    assert fresh.find(key) is None
    assert not fresh.must_refuse(make_key("another"), request)
