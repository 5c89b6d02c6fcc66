"""The scheduler as a spec: one token budget, running before waiting, chunks, room, preemption, policies."""

from __future__ import annotations

import pytest

from engine.core import EngineCore
from engine.errors import ConfigError
from engine.messages import GenerateRequest
from engine.scheduler.scheduler import Scheduler
from engine.step import StepRow
from tests.unit.engine.builders import (
    add,
    make_config,
    make_core,
    make_info,
    make_message,
    rows_of,
    run,
    step_until,
    value_of,
)
from tests.unit.engine.chain_runner import generate


def all_rows(core: EngineCore, message: GenerateRequest) -> list[StepRow]:
    return [row for step in core._runner.steps for row in step.rows if row.request_id == message.request_id]


def starts_of(core: EngineCore) -> list[tuple[str, int]]:
    """Request ids and chunk sizes of the rows that began at the first token, in order."""
    rows = [row for step in core._runner.steps for row in step.rows]
    return [(row.request_id, row.num_scheduled_tokens) for row in rows if row.num_computed_tokens == 0]


class TestBudget:
    def test_running_requests_come_before_waiting_ones(self):
        core = make_core(max_num_batched_tokens=10)
        first, second = make_message(8), make_message(12)
        add(core, first, second)
        core.step()
        assert rows_of(core) == {first.request_id: 8, second.request_id: 2}
        core.step()
        assert rows_of(core) == {first.request_id: 1, second.request_id: 9}
        core.step()
        assert rows_of(core) == {first.request_id: 1, second.request_id: 1}

    def test_a_step_never_exceeds_it(self):
        core = make_core(max_num_batched_tokens=7)
        add(core, *(make_message(5 + index) for index in range(6)))
        run(core)
        assert max(step.num_tokens for step in core._runner.steps) == 7

    def test_a_long_prompt_is_computed_in_chunks(self):
        core = make_core(max_num_batched_tokens=8)
        message = make_message(20)
        add(core, message)
        assert core.step() == []
        assert core.step() == []
        (output,) = core.step()
        assert output.token_ids == generate(message.prompt_token_ids, 1, 1000)
        assert [step.num_tokens for step in core._runner.steps] == [8, 8, 4]
        assert [step.rows[0].samples for step in core._runner.steps] == [False, False, True]

    def test_no_more_than_max_num_seqs_run(self):
        core = make_core(max_num_seqs=2)
        add(core, *(make_message(3, max_tokens=2) for _ in range(5)))
        core.step()
        assert (core.num_running, core.num_waiting) == (2, 3)
        run(core)
        assert max(len(step.rows) for step in core._runner.steps) == 2

    def test_a_finished_request_makes_place_in_the_next_step(self):
        core = make_core(max_num_seqs=1)
        first, second = make_message(3, max_tokens=1), make_message(3, max_tokens=1)
        add(core, first, second)
        core.step()
        core.step()
        assert list(rows_of(core)) == [second.request_id]

    def test_nothing_to_do_is_no_step(self):
        core = make_core()
        assert not core.has_work()
        assert core.step() == []


class TestLongPrefillThreshold:
    def test_it_caps_chunks_while_others_are_there(self):
        core = make_core(max_num_batched_tokens=64, long_prefill_token_threshold=6)
        first, second = make_message(20), make_message(5)
        add(core, first, second)
        core.step()
        assert rows_of(core) == {first.request_id: 6, second.request_id: 5}

    def test_it_does_not_slow_down_a_single_request(self):
        core = make_core(max_num_batched_tokens=64, long_prefill_token_threshold=6)
        add(core, make_message(20))
        core.step()
        assert list(rows_of(core).values()) == [20]


class TestWithoutChunkedPrefill:
    def test_a_prompt_is_computed_whole_or_waits(self):
        core = make_core(info=make_info(max_model_len=20), max_num_batched_tokens=20, enable_chunked_prefill=False)
        first, second = make_message(12), make_message(12)
        add(core, first, second)
        core.step()
        assert rows_of(core) == {first.request_id: 12}
        core.step()
        assert rows_of(core) == {first.request_id: 1, second.request_id: 12}
        run(core)

    def test_a_budget_smaller_than_the_context_is_refused_at_start(self):
        with pytest.raises(ConfigError, match="max_num_batched_tokens 19 is less than max_model_len 20"):
            Scheduler(make_config(max_num_batched_tokens=19, enable_chunked_prefill=False), make_info(max_model_len=20))


class TestConfig:
    @pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens"])
    def test_limits_are_at_least_one(self, name):
        with pytest.raises(ConfigError, match=f"{name} is 0"):
            Scheduler(make_config(**{name: 0}), make_info())

    def test_an_unknown_policy_is_refused_with_the_known_ones(self):
        with pytest.raises(ConfigError, match="'lifo' is not one of fcfs, priority"):
            Scheduler(make_config(scheduling_policy="lifo"), make_info())


class TestRoom:
    def test_a_request_is_admitted_only_if_all_its_tokens_fit(self):
        core = make_core(info=make_info(num_blocks=8, max_model_len=32), max_num_batched_tokens=4)
        first, second = make_message(17, max_tokens=1), make_message(16, max_tokens=1)  # five blocks and four
        add(core, first, second)
        for _ in range(5):
            core.step()
            assert list(rows_of(core)) == [first.request_id]
        core.step()
        assert list(rows_of(core)) == [second.request_id]

    def test_under_fcfs_nobody_overtakes_the_head_that_does_not_fit(self):
        core = make_core(info=make_info(num_blocks=8, max_model_len=32))
        large, larger, small = make_message(17), make_message(16), make_message(1)
        add(core, large, larger, small)
        core.step()
        assert list(rows_of(core)) == [large.request_id]

    def test_the_last_block_is_usable(self):
        core = make_core(info=make_info(num_blocks=2, max_model_len=8))
        message = make_message(7, max_tokens=5)
        add(core, message)
        output = run(core)[message.request_id]
        assert (output.token_ids, output.finish_reason) == (generate(message.prompt_token_ids, 1, 1000), "length")

    def test_a_context_larger_than_the_pool_ends_at_the_pools_end(self):
        core = make_core(info=make_info(num_blocks=3, max_model_len=100))
        message = make_message(5, max_tokens=50)
        add(core, message)
        output = run(core)[message.request_id]
        assert (len(output.token_ids), output.finish_reason) == (7, "length")


class TestPreemption:
    """Two prompts of two blocks in a pool of six: the first to need its fourth block, in step 6, finds none left."""

    INFO = make_info(num_blocks=6, max_model_len=24)

    def test_the_last_running_gives_way_and_comes_back_with_the_same_result(self):
        core = make_core(info=self.INFO, enable_prefix_caching=False)
        first, second = make_message(8, max_tokens=12), make_message(8, max_tokens=12)
        add(core, first, second)
        outputs = run(core)
        for message in (first, second):
            assert outputs[message.request_id].token_ids == generate(message.prompt_token_ids, 12, 1000)
        assert value_of(core, "num_preemptions_total") == 1
        assert starts_of(core) == [(first.request_id, 8), (second.request_id, 8), (second.request_id, 13)]

    def test_it_goes_to_the_front(self):
        core = make_core(info=self.INFO, enable_prefix_caching=False, max_num_seqs=2)
        first, second, third = (make_message(8, max_tokens=12) for _ in range(3))
        add(core, first, second, third)
        run(core)
        order = [request_id for request_id, _ in starts_of(core)]
        assert order[:4] == [message.request_id for message in (first, second, second, third)]

    def test_nobody_is_admitted_in_a_step_that_preempted(self):
        core = make_core(info=self.INFO, scheduling_policy="priority")
        first, second = make_message(8, max_tokens=12, priority=1), make_message(8, max_tokens=12, priority=2)
        small = make_message(1)
        add(core, first, second)
        for _ in range(5):
            core.step()
        add(core, small)
        core.step()
        assert list(rows_of(core)) == [first.request_id]
        core.step()
        assert list(rows_of(core)) == [first.request_id, small.request_id]

    def test_with_the_prefix_cache_most_is_found_again(self):
        core = make_core(info=self.INFO)
        first, second = make_message(8, max_tokens=10), make_message(8, max_tokens=12)
        add(core, first, second)
        run(core)
        again = [row for row in all_rows(core, second) if row.num_computed_tokens > 0 and row.num_scheduled_tokens > 1]
        assert [row.num_computed_tokens for row in again] == [4]  # the first took two of its three blocks

    def test_the_number_of_cached_tokens_is_that_of_the_first_admission(self):
        core = make_core(info=self.INFO)
        add(core, make_message(8, max_tokens=12), make_message(8, max_tokens=12))
        assert {output.num_cached_tokens for output in run(core).values()} == {0}


class TestPriority:
    def test_lower_numbers_are_admitted_first_then_earlier_arrivals(self):
        core = make_core(scheduling_policy="priority", max_num_seqs=1)
        low = make_message(3, priority=5, max_tokens=1, arrival_time=1.0)
        late = make_message(3, priority=1, max_tokens=1, arrival_time=3.0)
        early = make_message(3, priority=1, max_tokens=1, arrival_time=2.0)
        same = make_message(3, priority=1, max_tokens=1, arrival_time=3.0)
        add(core, low, late, early, same)
        run(core)
        served = [step.rows[0].request_id for step in core._runner.steps]
        assert served == [message.request_id for message in (early, late, same, low)]

    def test_the_worst_running_gives_way_even_if_it_was_admitted_first(self):
        core = make_core(scheduling_policy="priority", info=make_info(num_blocks=5, max_model_len=20))
        worse, better = make_message(8, priority=2, max_tokens=9), make_message(6, priority=1, max_tokens=9)
        add(core, worse)
        core.step()
        add(core, better)
        core.step()
        # Step 5 gives worse a row and then takes it back, for the third block of better.
        step_until(core, lambda: core.num_waiting == 1)
        assert list(rows_of(core)) == [better.request_id]
        run(core)
        assert value_of(core, "num_preemptions_total") == 1

    def test_a_worst_request_that_needs_room_itself_gives_way(self):
        core = make_core(scheduling_policy="priority", info=make_info(num_blocks=5, max_model_len=20))
        worse, better = make_message(8, priority=2, max_tokens=9), make_message(5, priority=1, max_tokens=9)
        add(core, worse)
        core.step()
        add(core, better)
        core.step()
        step_until(core, lambda: core.num_waiting == 1)
        assert list(rows_of(core)) == [better.request_id]
        run(core)
        assert value_of(core, "num_preemptions_total") == 1

    def test_an_aborted_request_does_not_come_up_again(self):
        core = make_core(scheduling_policy="priority", max_num_seqs=1)
        messages = [make_message(3, priority=index, max_tokens=1) for index in range(4)]
        add(core, *messages)
        core.abort([messages[0].request_id, messages[2].request_id])
        add(core, make_message(3, request_id=messages[0].request_id, priority=9, max_tokens=1))
        run(core)
        served = [step.rows[0].request_id for step in core._runner.steps]
        assert served == [messages[1].request_id, messages[3].request_id, messages[0].request_id]
