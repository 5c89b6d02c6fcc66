"""What steps are expected to take, and prompts cut so that streams need not wait longer. All times are made up."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.request import Request
from engine.scheduler.prompt_time import GRAIN, PromptTime
from engine.scheduler.recent_tenants import MEMORY_S, RecentTenants
from engine.scheduler.step_cost import MAX_FIXED_TOKENS, StepCost
from engine.scheduler.step_time import NUM_RECENT, StepTime
from tests.unit.engine.builders import add, make_config, make_info, make_message, rows_of, run, step_until
from tests.unit.engine.chain_runner import generate
from tests.unit.engine.drafting import make_drafting_core
from tests.unit.engine.machine import CONTEXT_COST, Machine, TimedRunner


def make_timed_core(machine: Machine, max_step_ms: int = 200, **knobs: object) -> EngineCore:
    info = make_info(num_blocks=4000, block_size=16, max_model_len=20000, context_cost=CONTEXT_COST)
    knobs = {"max_num_batched_tokens": 256, "max_step_ms": max_step_ms} | knobs
    return EngineCore(make_config(**knobs), TimedRunner(info, machine), clock=machine)


def begin_stream(core: EngineCore, prompt: int = 100, tenant: str = "") -> GenerateRequest:
    """One that decodes."""
    stream = make_message(prompt, max_tokens=5000, tenant=tenant)
    add(core, stream)
    step_until(core, lambda: rows_of(core).get(stream.request_id) == 1 if core._runner.steps else False)
    return stream


def compute_prompt(core: EngineCore, num_tokens: int) -> list[int]:
    """The pieces in which a prompt is computed."""
    message = make_message(num_tokens, max_tokens=1)
    add(core, message)
    first = len(core._runner.steps)
    step_until(core, lambda: message.request_id not in core._scheduler)
    steps = [rows_of(core, index) for index in range(first, len(core._runner.steps))]
    return [rows[message.request_id] for rows in steps if message.request_id in rows]


class TestPromptsBesideStreams:
    @pytest.mark.parametrize("token_s", [0.0003, 0.0008, 0.0016, 0.004])
    def test_a_stream_waits_no_longer_than_is_said(self, token_s):
        machine = Machine(token_s=token_s)
        core = make_timed_core(machine)
        begin_stream(core)
        machine.steps_s.clear()
        pieces = compute_prompt(core, 2048)
        assert sum(pieces) == 2048
        assert max(machine.steps_s) < 0.21
        # Nor much shorter than he may, but for the last piece of the prompt.
        assert all(size == 255 or seconds > 0.1 for size, seconds in zip(pieces[:-1], machine.steps_s, strict=False))

    def test_a_fast_machine_computes_whole_budgets(self):
        core = make_timed_core(Machine(token_s=0.0004))
        begin_stream(core)
        assert compute_prompt(core, 1000)[:3] == [255, 255, 255]

    def test_pieces_are_whole_grains(self):
        core = make_timed_core(Machine(token_s=0.0016))
        begin_stream(core)
        pieces = compute_prompt(core, 1000)
        assert len(pieces) > 6
        assert all(size % GRAIN == 0 for size in pieces[:-1])

    def test_without_a_stream_all_of_the_budget_is_used(self):
        core = make_timed_core(Machine(token_s=0.01))
        assert compute_prompt(core, 1000) == [256, 256, 256, 232]
        assert compute_prompt(core, 1000) == [256, 256, 256, 232]

    def test_a_hopelessly_slow_machine_computes_a_grain_a_step(self):
        core = make_timed_core(Machine(token_s=0.1))
        begin_stream(core)
        assert compute_prompt(core, 100) == [16] * 6 + [4]

    def test_rows_that_take_all_the_time_leave_a_grain(self):
        core = make_timed_core(Machine(row_s=0.05))
        for _ in range(8):
            begin_stream(core)
        assert set(compute_prompt(core, 64)) == {16}

    @pytest.mark.parametrize(("num_streams", "piece"), [(1, 16), (8, 16), (16, 16), (17, 32), (40, 48)])
    def test_many_streams_leave_prompts_as_many_tokens(self, num_streams, piece):
        core = make_timed_core(Machine(row_s=0.05, token_s=0.05), max_num_seqs=64)
        for _ in range(num_streams):
            begin_stream(core, prompt=20)
        assert set(compute_prompt(core, 4 * piece)) == {piece}

    def test_they_share_them(self):
        core = make_timed_core(Machine(row_s=0.05, token_s=0.05), max_num_seqs=64)
        for _ in range(40):
            begin_stream(core, prompt=20)
        first, second = make_message(30, max_tokens=1), make_message(30, max_tokens=1)
        add(core, first, second)
        core.step()
        assert [rows_of(core)[message.request_id] for message in (first, second)] == [30, 18]

    def test_it_can_be_off(self):
        core = make_timed_core(Machine(token_s=0.01), max_step_ms=0)
        begin_stream(core)
        assert compute_prompt(core, 600) == [255, 255, 90]

    def test_a_prompt_that_must_be_computed_at_once_is(self):
        core = make_timed_core(Machine(token_s=0.01), enable_chunked_prefill=False, max_num_batched_tokens=20000)
        begin_stream(core)
        assert compute_prompt(core, 600) == [600]

    def test_prompts_share_the_time_of_a_step(self):
        machine = Machine()
        core = make_timed_core(machine)
        begin_stream(core)
        add(core, *(make_message(90, max_tokens=1) for _ in range(6)))
        machine.steps_s.clear()
        step_until(core, lambda: core.num_running + core.num_waiting == 1)
        assert max(machine.steps_s) < 0.21
        assert len(machine.steps_s) == 3

    def test_a_long_conversation_goes_on_within_the_time_from_the_first_step(self):
        """The new tokens stand behind thousands of cached ones, and only short prompts were seen since."""
        machine = Machine()
        core = make_timed_core(machine)
        history = make_message(9000, max_tokens=1)
        add(core, history)
        run(core)
        begin_stream(core)
        for _ in range(NUM_RECENT):
            compute_prompt(core, 100)
        machine.steps_s.clear()
        add(core, make_message(history.prompt_token_ids + list(range(500)), max_tokens=1))
        step_until(core, lambda: core.num_running + core.num_waiting == 1)
        assert rows_of(core, -2).popitem()[1] % GRAIN == 0
        assert 0.15 < max(machine.steps_s) < 0.21

    def test_half_of_the_time_is_for_another_tenant_that_waits(self):
        machine = Machine()
        core = make_timed_core(machine)
        begin_stream(core, tenant="f")
        long = make_message(4000, tenant="f")
        add(core, long)
        core.step()
        whole = rows_of(core)[long.request_id]
        quiet = make_message(90, tenant="q")
        add(core, quiet)
        core.step()
        assert rows_of(core)[long.request_id] == whole // 2
        assert rows_of(core)[quiet.request_id] == 90
        assert machine.steps_s[-1] < 0.21

    @pytest.mark.parametrize("token_s", [0.0008, 0.0032, 0.1])
    def test_and_so_it_stays_until_the_others_prompt_is_computed(self, token_s):
        core = make_timed_core(Machine(token_s=token_s), fair_step_tokens=4)
        long, quiet = make_message(9000, tenant="f"), make_message(110, tenant="q")
        add(core, long)
        core.step()
        add(core, quiet)
        core.step()
        first = len(core._runner.steps) - 1
        step_until(core, lambda: rows_of(core).get(quiet.request_id) == 1)
        pieces = [rows_of(core, index) for index in range(first, len(core._runner.steps) - 2)]
        assert all(rows[quiet.request_id] >= GRAIN // 2 for rows in pieces)
        assert all(rows[long.request_id] >= GRAIN // 2 for rows in pieces)

    def test_a_suspects_prompt_is_cut_as_any_other(self, monkeypatch):
        machine = Machine()
        core = make_timed_core(machine)
        begin_stream(core)
        compute_prompt(core, 100)
        suspect = make_message(1000, max_tokens=1)

        def suspect_it(request: Request) -> None:
            request.num_faults, request.trial_end = 1, 4

        monkeypatch.setattr(core, "_suspect", suspect_it)
        add(core, suspect)
        machine.steps_s.clear()
        step_until(core, lambda: suspect.request_id not in core._scheduler)
        assert len(machine.steps_s) > 7, "in turn with the stream"
        assert max(machine.steps_s) < 0.21


class TestStepsOfSeveralTenants:
    """A step is short while there may be somebody who comes back and waits for its end."""

    LONG = 3000

    def make(self, machine: Machine, **knobs: object) -> EngineCore:
        core = make_timed_core(machine, **({"fair_step_tokens": 4} | knobs))
        begin_stream(core, tenant="f")
        add(core, make_message(6 * self.LONG, tenant="f"))
        core.step()
        return core

    @staticmethod
    def visit(core: EngineCore) -> None:
        quiet = make_message(20, max_tokens=3, tenant="q")
        add(core, quiet)
        step_until(core, lambda: quiet.request_id not in core._scheduler)

    @staticmethod
    def longest(core: EngineCore, machine: Machine, num_steps: int = 3) -> float:
        machine.steps_s.clear()
        for _ in range(num_steps):
            core.step()
        return max(machine.steps_s)

    def test_a_tenant_by_itself_has_whole_steps(self):
        machine = Machine()
        assert 0.15 < self.longest(self.make(machine), machine) < 0.21

    def test_another_one_that_was_there_finds_short_steps(self):
        machine = Machine()
        core = self.make(machine)
        self.visit(core)
        assert 0.03 < self.longest(core, machine) < 0.055
        machine.now_s += MEMORY_S / 2
        self.visit(core)
        machine.now_s += MEMORY_S / 2 + 1
        assert self.longest(core, machine) < 0.055

    def test_after_a_while_steps_are_whole_again(self):
        machine = Machine()
        core = self.make(machine)
        self.visit(core)
        core.step()
        machine.now_s += MEMORY_S + 1
        assert 0.15 < self.longest(core, machine) < 0.21

    def test_nor_are_prompts_without_a_stream_whole_steps(self):
        machine = Machine()
        core = make_timed_core(machine, fair_step_tokens=4)
        self.visit(core)
        add(core, make_message(self.LONG, tenant="f"))
        core.step()
        assert self.longest(core, machine) < 0.055

    @pytest.mark.parametrize("knobs", [{"fair_step_tokens": 0}, {"scheduling_policy": "priority"}])
    def test_where_tenants_do_not_matter_nothing_changes(self, knobs):
        machine = Machine()
        core = self.make(machine, **knobs)
        self.visit(core)
        assert 0.15 < self.longest(core, machine) < 0.21

    def test_who_comes_back_keeps_its_place_in_the_memory(self):
        recent = RecentTenants()
        recent.note(["a", "b"], 0.0)
        recent.note(["a"], MEMORY_S)
        assert recent.are_several
        recent.note(["a"], MEMORY_S + 1)
        assert not recent.are_several
        recent.note(["c"], 2 * MEMORY_S)
        assert recent.are_several
        recent.note([], 4 * MEMORY_S)
        assert not recent.are_several


class TestAChangingMachine:
    @staticmethod
    def make(num_steps):
        """So many steps of a long prompt beside a stream are over."""
        machine = Machine()
        core = make_timed_core(machine)
        begin_stream(core)
        add(core, make_message(12000, max_tokens=1))
        for _ in range(num_steps):
            core.step()
        return machine, core

    def test_a_step_that_was_held_up_changes_nothing(self):
        machine, core = self.make(num_steps=4)
        machine.slowness = 20.0
        core.step()
        machine.slowness = 1.0
        for _ in range(10):
            core.step()
        assert min(machine.steps_s[-10:]) > 0.15

    def test_one_that_became_slower_is_noticed_in_a_few_steps(self):
        machine, core = self.make(num_steps=12)
        machine.slowness = 3.0
        for _ in range(15):
            core.step()
        assert sum(seconds > 0.25 for seconds in machine.steps_s[-15:]) <= NUM_RECENT // 2 + 1
        machine.slowness = 1.0
        for _ in range(15):
            core.step()
        assert min(machine.steps_s[-5:]) > 0.15, "and so is one that is fast again"


class TestTheOutputIsTheSame:
    def test_for_a_prompt_with_logprobs(self):
        core = make_timed_core(Machine(token_s=0.0016))
        begin_stream(core)
        message = make_message(700, max_tokens=3, prompt_logprobs=0)
        add(core, message)
        outputs = []
        while message.request_id in core._scheduler:
            outputs += [output for output in core.step() if output.request_id == message.request_id]
        told = [entry.token_id for entry in outputs[0].prompt_logprobs or [] if entry]
        assert told == message.prompt_token_ids[1:]
        token_ids = [token_id for output in outputs for token_id in output.token_ids]
        assert token_ids == generate(message.prompt_token_ids, 3, 1000)

    @pytest.mark.parametrize("token_s", [0.0004, 0.0016, 0.1])
    def test_when_steps_are_planned_ahead(self, token_s):
        machine = Machine(token_s=token_s)
        core = make_timed_core(machine, async_scheduling=True)
        messages = [make_message(length, max_tokens=40) for length in (20, 300, 30, 700, 5)]
        add(core, *messages)
        outputs = run(core)
        core.close()
        for message in messages:
            assert outputs[message.request_id].token_ids == generate(message.prompt_token_ids, 40, 1000)

    def test_beside_drafts(self):
        ticks = iter(range(10**6))
        core = make_drafting_core(4, clock=lambda: next(ticks) * 0.1, max_step_ms=200)
        messages = [make_message(length, max_tokens=20) for length in (20, 90, 30)]
        add(core, *messages)
        outputs = run(core)
        for message in messages:
            assert outputs[message.request_id].token_ids == generate(message.prompt_token_ids, 20, 1000)


class TestStepTime:
    def test_nothing_is_expected_of_what_was_not_seen(self):
        times = StepTime(CONTEXT_COST)
        assert times.expect_prompt_token(0) == 0.0
        assert times.decoding.expect(5) == 0.0
        assert PromptTime(0.1, times).left(0) > 10**6

    def test_a_few_prompt_tokens_tell_nothing(self, observe_prompt):
        times = StepTime(CONTEXT_COST)
        observe_prompt(times, 15, 1.0)
        assert times.expect_prompt_token(0) == 0.0
        observe_prompt(times, 16, 1.6)
        assert times.expect_prompt_token(0) == pytest.approx(0.1)

    def test_of_two_times_the_shorter_one_counts(self, observe_prompt):
        times = StepTime(CONTEXT_COST)
        observe_prompt(times, 100, 50.0)
        observe_prompt(times, 100, 0.1)
        assert times.expect_prompt_token(3000) == pytest.approx(0.002)

    def test_prompts_that_cost_nothing_are_not_cut(self, observe_prompt):
        times = StepTime(CONTEXT_COST)
        observe_prompt(times, 100, 0.0)
        assert PromptTime(0.1, times).left(0) > 10**6


@pytest.fixture
def observe_prompt() -> Callable[[StepTime, int, float], None]:
    def observe(times: StepTime, num_tokens: int, seconds: float) -> None:
        core = make_timed_core(Machine())
        add(core, make_message(num_tokens))
        core.step()
        times.observe(core._runner.steps[0], seconds)

    return observe


class TestStepCost:
    @pytest.mark.parametrize("fixed_tokens", [0.0, 3.0, 25.0])
    def test_it_finds_the_line(self, fixed_tokens):
        rng, cost = random.Random(1), StepCost()
        for _ in range(400):
            num_tokens = rng.choice([1, 1, 3, 5])
            cost.observe(num_tokens, 2e-3 * (fixed_tokens + num_tokens) * rng.uniform(0.95, 1.05))
        assert cost.fixed_tokens == pytest.approx(fixed_tokens, rel=0.15, abs=0.3)

    def test_what_was_found_holds_while_there_is_nothing_to_tell_from(self):
        cost = StepCost()
        for num_tokens in [1, 5] * 20:
            cost.observe(num_tokens, 1e-3 * (7 + num_tokens))
        for _ in range(2000):
            cost.observe(1, 8e-3)
        assert cost.fixed_tokens == pytest.approx(7, rel=0.3)

    def test_free_tokens_are_free(self):
        cost = StepCost()
        for num_tokens in [1, 9] * 20:
            cost.observe(num_tokens, 5e-3)
        assert cost.fixed_tokens == MAX_FIXED_TOKENS

    def test_a_step_that_was_held_up_hardly_counts(self):
        cost = StepCost()
        for num_tokens in [1, 5] * 50:
            cost.observe(num_tokens, 1e-3 * (4 + num_tokens))
        cost.observe(1, 10.0)
        assert 2 < cost.fixed_tokens < 8

    def test_beside_many_rows_a_token_costs_what_it_brings(self):
        cost = StepCost()
        costs = [cost.relative_cost(rows, rows) for rows in (1, 4, 16, 64)]
        assert costs == sorted(costs)
        assert (costs[0], costs[-1]) == (0.25, pytest.approx(0.955, abs=1e-3))

    def test_it_expects_what_the_line_says(self):
        cost = StepCost()
        for num_tokens in [1, 5] * 50:
            cost.observe(num_tokens, 1e-3 * (4 + num_tokens))
        assert [cost.expect(count) for count in (0, 1, 40)] == pytest.approx([4e-3, 5e-3, 44e-3], rel=0.05)
