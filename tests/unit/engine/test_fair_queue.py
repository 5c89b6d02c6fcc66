"""Tenants wait in lines of their own: who was served least is next, within a line nobody overtakes."""

from __future__ import annotations

import pytest

from engine.core import EngineCore
from engine.messages import GenerateRequest
from tests.unit.engine.builders import add, make_core, make_info, make_message, rows_of, run, step_until


def served_order(core: EngineCore, messages: list[GenerateRequest]) -> str:
    """The tenants, in the order in which their requests began."""
    run(core)
    tenants = {message.request_id: message.tenant for message in messages}
    rows = [row for step in core._runner.steps for row in step.rows]
    return "".join(tenants[row.request_id] for row in rows if row.num_computed_tokens == 0)


def add_line(core: EngineCore, tenants: str, prompt: int = 4, max_tokens: int = 2) -> list[GenerateRequest]:
    messages = [make_message(prompt, tenant=tenant, max_tokens=max_tokens) for tenant in tenants]
    add(core, *messages)
    return messages


def test_a_flood_does_not_hold_up_a_quiet_tenant() -> None:
    core = make_core(max_num_seqs=1)
    messages = add_line(core, "f" * 20 + "qqq")
    assert served_order(core, messages) == "qfqfq" + "f" * 18


def test_three_tenants_get_equal_shares_while_all_wait() -> None:
    core = make_core(max_num_seqs=2)
    messages = add_line(core, "a" * 30 + "b" * 10 + "c" * 10)
    order = served_order(core, messages)[:30]
    assert {tenant: order.count(tenant) for tenant in "abc"} == {"a": 10, "b": 10, "c": 10}


def test_shares_are_of_tokens_not_of_requests() -> None:
    core = make_core(max_num_seqs=1, info=make_info(num_blocks=200))
    big = add_line(core, "b" * 10, prompt=40, max_tokens=1)
    small = add_line(core, "s" * 30, prompt=4, max_tokens=1)
    # 40 + 2 against 4 + 2 tokens: seven small ones for a big one.
    assert served_order(core, big + small).startswith("bsssssssbsssssssb")


def test_within_a_tenant_nobody_overtakes() -> None:
    core = make_core(max_num_seqs=1)
    messages = add_line(core, "abababab")
    run(core)
    rows = [row for step in core._runner.steps for row in step.rows]
    order = [row.request_id for row in rows if row.num_computed_tokens == 0]
    for tenant in "ab":
        own = [message.request_id for message in messages if message.tenant == tenant]
        assert [request_id for request_id in order if request_id in own] == own


def test_who_was_away_saves_up_nothing() -> None:
    """A tenant that comes late gets its turn, not all the service that it missed."""
    core = make_core(max_num_seqs=1)
    early = add_line(core, "f" * 40)
    step_until(core, lambda: core.num_waiting <= 20)
    late = add_line(core, "l" * 10)
    order = served_order(core, early + late)[20:]
    assert order[:8].count("l") == 4


def test_who_had_the_box_alone_owes_a_newcomer_only_what_it_still_computes() -> None:
    core = make_core(max_num_seqs=1)
    alone = add_line(core, "f" * 10, max_tokens=20)
    step_until(core, lambda: core.num_waiting == 0)
    both = add_line(core, "n" * 10) + add_line(core, "f" * 10)
    order = served_order(core, alone + both)[10:]
    # The one that was running made 20 more tokens, which count twice; a newcomer's request is worth 8.
    assert order.startswith("nnnnnfnfnf")


def test_a_long_prompt_leaves_half_of_a_step_to_another_tenant() -> None:
    core = make_core(max_num_batched_tokens=16, info=make_info(num_blocks=100))
    long = make_message(150, tenant="f")
    add(core, long, *(make_message(150, tenant="f") for _ in range(3)))
    core.step()
    assert rows_of(core) == {long.request_id: 16}, "its own requests wait"
    quiet = make_message(12, tenant="q")
    add(core, quiet)
    core.step()
    assert rows_of(core) == {long.request_id: 8, quiet.request_id: 8}
    run(core)


@pytest.mark.parametrize(("policy", "pieces"), [("fcfs", [8, 8, 8, 8, 8]), ("priority", [10, 16, 14])])
def test_nor_does_it_stop_anothers_prompt_that_has_begun(policy: str, pieces: list[int]) -> None:
    """Though all of a prompt is charged when it begins: the newcomer then seems to have had more."""
    core = make_core(max_num_batched_tokens=16, scheduling_policy=policy, info=make_info(num_blocks=200))
    long = make_message(150, tenant="f", max_tokens=1)
    add(core, long)
    core.step()
    quiet = make_message(40, tenant="q", max_tokens=1)
    add(core, quiet)
    step_until(core, lambda: quiet.request_id not in core._scheduler)
    assert [rows_of(core, index)[quiet.request_id] for index in range(-len(pieces), 0)] == pieces
    assert (long.request_id in core._scheduler) == (policy == "fcfs"), "under priority who began first goes on"
    run(core)


def test_prompts_of_three_tenants_go_on_together() -> None:
    core = make_core(max_num_batched_tokens=16, info=make_info(num_blocks=200))
    messages = [make_message(100, tenant=tenant, max_tokens=1) for tenant in "abc"]
    add(core, messages[0])
    core.step()
    add(core, *messages[1:])
    for _ in range(3):
        core.step()
    assert [rows_of(core)[message.request_id] for message in messages] == [8, 4, 4]
    run(core)


def test_a_prompt_leaves_a_crowds_prompt_its_few_tokens_at_most() -> None:
    core = make_core(fair_step_tokens=4, max_num_batched_tokens=32, info=make_info(num_blocks=300))
    quiet = make_message(150, tenant="q", max_tokens=1)
    add(core, quiet)
    core.step()
    add(core, *(make_message(20, tenant="f", max_tokens=1) for _ in range(12)))
    core.step()
    core.step()
    assert rows_of(core)[quiet.request_id] == 32
    assert sum(rows_of(core).values()) == 32
    run(core)


def test_who_is_next_but_has_had_its_share_is_in_nobodys_way() -> None:
    core = make_core(fair_step_tokens=3, max_num_batched_tokens=64, info=make_info(num_blocks=200))
    add_line(core, "ffff", max_tokens=40)
    core.step()
    add_line(core, "q", prompt=60, max_tokens=1)  # it has had more than the crowd, but not much more
    core.step()
    add_line(core, "qffff", max_tokens=9)
    core.step()
    add_line(core, "ff", max_tokens=9)
    [quiet] = add_line(core, "r", prompt=6, max_tokens=4)
    core._scheduler._waiting.charge(core._scheduler._requests[quiet.request_id], 10, 0)
    assert core._scheduler._waiting.peek(lambda tenant: True).tenant == "f"
    core.step()
    assert rows_of(core)[quiet.request_id] == 6
    run(core)


def test_a_crowd_takes_a_few_tokens_beside_another_tenant() -> None:
    core = make_core(fair_step_tokens=3, max_num_batched_tokens=64)
    crowd = [make_message(4, tenant="f", max_tokens=30) for _ in range(8)]
    add(core, *crowd)
    core.step()
    core.step()
    assert len(rows_of(core)) == 8, "alone it has all"
    quiet = make_message(10, tenant="q", max_tokens=20)
    add(core, quiet)
    core.step()
    assert sorted(rows_of(core).values()) == [1, 1, 1, 10], "the newcomer's prompt is computed at once"
    beside = []
    while quiet.request_id in core._scheduler:
        core.step()
        beside.append(sorted(rows_of(core).values()))
    assert beside == [[1, 1, 1, 1]] * 19, "nor does the crowd first get as much as the quiet one's prompt was"
    outputs = run(core)
    assert set(outputs) == {message.request_id for message in crowd}


def test_who_has_had_much_more_than_a_crowd_is_favoured_no_longer() -> None:
    core = make_core(fair_step_tokens=3, max_num_batched_tokens=256, info=make_info(num_blocks=200))
    add(core, *(make_message(4, tenant="f", max_tokens=40) for _ in range(4)))
    core.step()
    core.step()
    quiet = make_message(150, tenant="q", max_tokens=40)
    add(core, quiet)
    core.step()
    assert sorted(rows_of(core).values()) == [1, 1, 1, 150]
    core.step()
    assert len(rows_of(core)) == 5, "all of the crowd's"
    step_until(core, lambda: len(rows_of(core)) == 4)
    run(core)


def test_a_preempted_request_counts_as_one_of_its_tenants() -> None:
    core = make_core(info=make_info(num_blocks=6, block_size=4, max_model_len=24), enable_prefix_caching=False)
    add_line(core, "aab", prompt=10, max_tokens=10)
    step_until(core, lambda: core.num_running == 1)
    scheduler = core._scheduler
    assert scheduler._waiting.count(scheduler._running) == {"a": 2, "b": 1}
    run(core)


def test_equal_tenants_do_not_hold_each_other_up() -> None:
    core = make_core(fair_step_tokens=2, max_num_batched_tokens=64)
    add_line(core, "aabbcc", prompt=2, max_tokens=6)
    core.step()
    core.step()
    assert len(rows_of(core)) == 6
    run(core)


def test_a_crowds_preempted_request_does_not_stand_in_another_tenants_way() -> None:
    info = make_info(num_blocks=20, block_size=4, max_model_len=40)
    core = make_core(fair_step_tokens=2, info=info, enable_prefix_caching=False)
    crowd = [make_message(4, tenant="f", max_tokens=30) for _ in range(5)]
    add(core, *crowd)
    step_until(core, lambda: core.num_running == 3)
    core.abort([crowd[0].request_id])  # there are blocks again, but the two that run take the crowd's share
    quiet = make_message(4, tenant="q", max_tokens=2)
    add(core, quiet)
    core.step()
    assert rows_of(core) == {crowd[1].request_id: 1, crowd[2].request_id: 1, quiet.request_id: 4}
    assert set(run(core)) == {message.request_id for message in crowd[1:]} | {quiet.request_id}


def test_a_prompt_that_must_be_computed_at_once_is() -> None:
    core = make_core(max_num_batched_tokens=200, enable_chunked_prefill=False)
    add(core, *(make_message(120, tenant=tenant) for tenant in "fq"))
    run(core)
    assert sorted(step.num_tokens for step in core._runner.steps)[-2:] == [120, 121]


def test_a_preempted_request_goes_on_before_everybody_else() -> None:
    core = make_core(info=make_info(num_blocks=6, block_size=4, max_model_len=24), enable_prefix_caching=False)
    first, second = make_message(10, tenant="a", max_tokens=10), make_message(10, tenant="a", max_tokens=10)
    add(core, first, second)
    core.step()
    quiet = make_message(8, tenant="q")
    add(core, quiet)
    step_until(core, lambda: core.num_running == 1)
    assert core.num_waiting == 2
    step_until(core, lambda: first.request_id not in core._scheduler)
    step_until(core, lambda: len(rows_of(core)) and second.request_id in rows_of(core))
    assert quiet.request_id in core._scheduler
    assert all(quiet.request_id not in [row.request_id for row in step.rows] for step in core._runner.steps[:-1])


def test_priority_wins_over_fairness() -> None:
    core = make_core(max_num_seqs=1, scheduling_policy="priority")
    flood = [make_message(4, tenant="f", priority=0) for _ in range(5)]
    quiet = make_message(4, tenant="q", priority=1)
    add(core, quiet, *flood)
    assert served_order(core, [quiet, *flood]) == "fffffq"


def test_the_load_counts_who_waits_and_the_places_that_are_free() -> None:
    core = make_core(max_num_seqs=2)
    assert core.queue_load == (0, 0, 2)
    messages = add_line(core, "aab", prompt=5, max_tokens=3)
    assert core.queue_load == (3, 15, 2)
    core.step()
    assert core.queue_load == (1, 5, 0)
    core.abort([messages[1].request_id])
    assert core.queue_load == (0, 0, 0)
    run(core)
    assert core.queue_load == (0, 0, 2)


def test_a_free_place_that_waits_for_blocks_is_not_free() -> None:
    core = make_core(info=make_info(num_blocks=4, block_size=4, max_model_len=16), enable_prefix_caching=False)
    add_line(core, "aa", prompt=12, max_tokens=3)
    core.step()
    assert core.queue_load == (1, 12, 0)
    run(core)
    assert core.queue_load == (0, 0, core._scheduler._config.max_num_seqs)


def test_a_tenant_with_no_more_requests_is_no_crowd() -> None:
    core = make_core(fair_step_tokens=2, max_num_batched_tokens=16, info=make_info(num_blocks=200))
    stream = make_message(2, tenant="a", max_tokens=100)
    add(core, stream)
    core.step()
    prompt = make_message(90, tenant="b", max_tokens=2)
    add(core, prompt)
    for _ in range(3):
        core.step()
        assert rows_of(core) == {stream.request_id: 1, prompt.request_id: 15}
    run(core)
