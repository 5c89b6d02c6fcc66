"""Automatic prefix caching, seen through an engine whose runner checks every block it reads."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from engine.cache.block_hash import BlockHasher
from engine.core import EngineCore
from tests.unit.engine.builders import add, make_core, make_info, make_message, rows_of, run, value_of
from tests.unit.engine.chain_runner import generate

PROMPT = list(range(100, 114))  # 14 tokens: three full blocks of four, and two tokens


def num_cached(core: EngineCore, prompt: list[int], **fields: object) -> int | None:
    message = make_message(prompt, **fields)
    add(core, message)
    return run(core)[message.request_id].num_cached_tokens


def test_the_first_time_nothing_is_cached():
    assert num_cached(make_core(), PROMPT) == 0


def test_the_second_time_all_full_blocks_are_cached():
    core = make_core()
    num_cached(core, PROMPT)
    assert num_cached(core, PROMPT) == 12
    assert list(rows_of(core, step=4).values()) == [2]


def test_at_least_the_last_token_is_computed():
    core = make_core()
    num_cached(core, PROMPT[:12])
    assert num_cached(core, PROMPT[:12]) == 8
    assert num_cached(core, PROMPT[:13]) == 12


def test_output_tokens_are_cached_too():
    core = make_core()
    first = make_message(PROMPT, max_tokens=7)
    add(core, first)
    output = run(core)[first.request_id].token_ids
    # 14 + 7 tokens, the last of which has no KV: five full blocks.
    assert num_cached(core, PROMPT + output + [1, 2, 3]) == 20


def test_a_prefix_is_shared_up_to_the_first_difference():
    core = make_core()
    num_cached(core, PROMPT)
    assert num_cached(core, PROMPT[:9] + [7] * 10) == 8
    assert num_cached(core, [7, *PROMPT[1:]]) == 0


def test_equal_blocks_after_different_beginnings_are_different():
    core = make_core()
    num_cached(core, [1, 1, 1, 1, *PROMPT])
    assert num_cached(core, [2, 2, 2, 2, *PROMPT]) == 0


def test_a_salt_isolates():
    core = make_core()
    num_cached(core, PROMPT, cache_salt="a")
    assert num_cached(core, PROMPT, cache_salt="b") == 0
    assert num_cached(core, PROMPT) == 0
    assert num_cached(core, PROMPT, cache_salt="a") == 12


def test_it_can_be_switched_off():
    core = make_core(enable_prefix_caching=False)
    num_cached(core, PROMPT)
    assert num_cached(core, PROMPT) == 0


def test_prompt_logprobs_skip_reading_but_not_writing():
    core = make_core()
    num_cached(core, PROMPT, prompt_logprobs=1)
    assert num_cached(core, PROMPT, prompt_logprobs=1) == 0
    assert num_cached(core, PROMPT) == 12


def test_blocks_of_a_running_request_are_shared():
    core = make_core()
    first = make_message(PROMPT, max_tokens=20)
    add(core, first)
    core.step()
    assert core.kv_cache_usage == 4 / 64
    add(core, make_message(PROMPT, max_tokens=20))
    _, second = core.step()
    assert second.num_cached_tokens == 12
    assert core.kv_cache_usage == 5 / 64  # only its last block is its own
    run(core)


def test_equal_prompts_that_arrive_together_are_computed_once():
    core = make_core()
    twins = [make_message(PROMPT, max_tokens=3) for _ in range(3)]
    add(core, *twins)
    core.step()
    assert rows_of(core) == {twins[0].request_id: 14}
    core.step()
    assert list(rows_of(core).values()) == [1, 2, 2]
    run(core)


def test_one_that_lets_another_go_first_does_not_hold_up_those_behind_it():
    core = make_core()
    first, twin, other = make_message(PROMPT), make_message(PROMPT), make_message(9)
    add(core, first, twin, other)
    core.step()
    assert list(rows_of(core)) == [first.request_id, other.request_id]
    assert core.num_waiting == 1
    assert value_of(core, "num_requests_waiting_by_reason", reason="deferred") == 1
    assert value_of(core, "num_requests_waiting_by_reason", reason="capacity") == 0


def test_a_small_common_prefix_is_not_worth_waiting_for():
    core = make_core()
    add(core, make_message([*PROMPT[:4], *range(20)]), make_message([*PROMPT[:4], *range(50, 70)]))
    core.step()
    assert list(rows_of(core).values()) == [24, 24]


def test_who_waits_for_an_aborted_twin_computes_himself():
    core = make_core(max_num_batched_tokens=6)
    first, twin = make_message(PROMPT), make_message(PROMPT)
    add(core, first, twin)
    core.step()
    core.abort([first.request_id])
    assert run(core)[twin.request_id].token_ids == generate(PROMPT, 4, 1000)


@pytest.mark.parametrize(("prompt", "is_kept"), [(list(range(16)), True), (list(range(50, 66)), False)])
def test_the_least_recently_used_prompt_is_forgotten_first(prompt, is_kept):
    core = make_core(info=make_info(num_blocks=10, max_model_len=40))
    used, unused, large = list(range(16)), list(range(50, 66)), list(range(100, 116))
    for earlier in (used, unused, used, large):
        num_cached(core, earlier, max_tokens=1)
    assert (num_cached(core, prompt, max_tokens=1) == 12) is is_kept


def test_each_block_is_hashed_once():
    with patch.object(BlockHasher, "block", autospec=True, side_effect=BlockHasher.block) as block:
        core = make_core(info=make_info(num_blocks=9))
        add(core, make_message(10, max_tokens=20), make_message(10, max_tokens=20))
        run(core)
    assert value_of(core, "num_preemptions_total") > 0
    assert block.call_count == 2 * (29 // 4)


def test_reset_forgets_everything_once_nothing_runs():
    core = make_core()
    add(core, make_message(PROMPT))
    core.step()
    assert not core.reset_prefix_cache()
    run(core)
    assert core.reset_prefix_cache()
    assert num_cached(core, PROMPT) == 0
