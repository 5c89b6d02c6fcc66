"""Drafts in the scheduler: where they fit, what becomes of them, and that they cost nobody anything."""

from __future__ import annotations

import pytest

from engine.config import SpeculationConfig
from engine.core import EngineCore
from engine.messages import Grammar
from tests.unit.engine.builders import (
    VOCAB_SIZE,
    add,
    make_core,
    make_info,
    make_message,
    rows_of,
    run,
    step_until,
    value_of,
)
from tests.unit.engine.chain_runner import ChainRunner, generate
from tests.unit.engine.drafting import Spoil, make_drafting_core


def num_steps(core: EngineCore) -> int:
    runner = core._runner
    assert isinstance(runner, ChainRunner)
    return len(runner.steps)


def drafts_of(core: EngineCore, step: int = -1) -> dict[str, int]:
    """Request id → draft tokens in a step."""
    runner = core._runner
    assert isinstance(runner, ChainRunner)
    return {row.request_id: len(row.draft_token_ids) for row in runner.steps[step].rows}


class TestTokens:
    @pytest.mark.parametrize("length", [1, 2, 4, 9])
    @pytest.mark.parametrize(
        "spoil",
        [lambda n: False, lambda n: True, lambda n: n % 3 == 0, lambda n: n % 7 == 5],
        ids=["right", "wrong", "thirds", "sevenths"],
    )
    def test_they_are_the_same_as_without(self, length: int, spoil: Spoil) -> None:
        core = make_drafting_core(length, spoil)
        message = make_message(6, max_tokens=31, logprobs=0)
        add(core, message)
        output = run(core)[message.request_id]
        assert output.token_ids == generate(message.prompt_token_ids, 31, VOCAB_SIZE)
        assert output.finish_reason == "length"
        assert output.logprobs is not None
        assert [entry.token_id for entry in output.logprobs] == output.token_ids

    def test_right_drafts_save_steps(self) -> None:
        core = make_drafting_core(4)
        add(core, make_message(6, max_tokens=31))
        run(core)
        assert num_steps(core) == 1 + 6  # the prompt's token, then five a step

    @pytest.mark.parametrize("place", range(1, 10))
    @pytest.mark.parametrize("by", ["eos", "stop id"])
    def test_a_stop_amid_a_draft_drops_the_rest(self, place: int, by: str) -> None:
        message = make_message(6, max_tokens=31)
        expected = generate(message.prompt_token_ids, 31, VOCAB_SIZE)
        stop = expected[place]
        assert expected.index(stop) == place
        core = make_drafting_core(4, info=make_info(eos_token_ids=frozenset({stop} if by == "eos" else ())))
        sampling = {"stop_token_ids": [] if by == "eos" else [stop]}
        again = make_message(message.prompt_token_ids, max_tokens=31, **sampling)
        add(core, again)
        output = run(core)[again.request_id]
        assert output.token_ids == expected[: place + 1]
        assert (output.finish_reason, output.stop_reason) == ("stop", None if by == "eos" else stop)
        assert core.kv_cache_usage == 0

    def test_a_stop_before_min_tokens_is_no_stop(self) -> None:
        message = make_message(6, max_tokens=20)
        expected = generate(message.prompt_token_ids, 20, VOCAB_SIZE)
        core = make_drafting_core(4)
        again = make_message(
            message.prompt_token_ids, max_tokens=20, min_tokens=5, stop_token_ids=[expected[2], expected[7]]
        )
        add(core, again)
        assert run(core)[again.request_id].token_ids == expected[:8]

    def test_resumed_and_aborted(self) -> None:
        message = make_message(6, max_tokens=20)
        expected = generate(message.prompt_token_ids, 20, VOCAB_SIZE)
        core = make_drafting_core(4, lambda n: n % 4 == 1)
        resumed = make_message(message.prompt_token_ids, max_tokens=20, resumed_token_ids=expected[:7])
        other = make_message(9, max_tokens=50)
        add(core, other, resumed)
        core.step()
        assert core.abort([other.request_id])
        assert [expected[7], *run(core)[resumed.request_id].token_ids] == expected[7:]
        assert core.kv_cache_usage == 0


class TestWhere:
    def test_never_past_max_tokens_or_the_context(self) -> None:
        core = make_drafting_core(8, info=make_info(max_model_len=18))  # the runner looks at the context, too
        short, long = make_message(6, max_tokens=4), make_message(10, max_tokens=50)
        add(core, short, long)
        core.step()
        outputs = run(core)
        assert drafts_of(core) == {short.request_id: 2, long.request_id: 6}
        assert [len(outputs[message.request_id].token_ids) for message in (short, long)] == [3, 7]
        assert outputs[long.request_id].finish_reason == "length"

    def test_only_in_what_is_left_of_the_budget(self) -> None:
        core = make_drafting_core(8, max_num_batched_tokens=10)
        first, second, third = (make_message(2, max_tokens=40) for _ in range(3))
        add(core, first, second, third)
        core.step()
        core.step()
        assert drafts_of(core) == {first.request_id: 7, second.request_id: 0, third.request_id: 0}

    def test_only_so_many_logits_are_made_in_a_step(self) -> None:
        core = make_drafting_core(40, max_num_seqs=4, info=make_info(num_blocks=200))
        messages = [make_message(2, max_tokens=60) for _ in range(3)]
        add(core, *messages)
        core.step()
        core.step()
        assert list(drafts_of(core).values()) == [40, 21, 0]  # with the rows' own tokens 64

    def test_a_prompt_comes_before_drafts(self) -> None:
        core = make_drafting_core(8, max_num_batched_tokens=10)
        running, new = make_message(2, max_tokens=40), make_message(15)
        add(core, running)
        core.step()
        add(core, new)
        core.step()
        assert rows_of(core) == {running.request_id: 1, new.request_id: 9}
        core.step()
        assert rows_of(core) == {running.request_id: 4, new.request_id: 6}  # three are left for a draft

    def test_a_prompt_s_last_chunk_has_none(self) -> None:
        core = make_drafting_core(8)
        add(core, make_message(6))
        core.step()
        assert list(drafts_of(core).values()) == [0]

    def test_only_in_free_blocks(self) -> None:
        core = make_drafting_core(8, info=make_info(num_blocks=4, max_model_len=16))
        first, second = make_message(6, max_tokens=6), make_message(6, max_tokens=6)
        add(core, first, second)
        core.step()
        core.step()  # 7 tokens each in two blocks: one more slot, and no block
        assert drafts_of(core) == {first.request_id: 1, second.request_id: 1}

    def test_nobody_is_preempted_for_one(self) -> None:
        core = make_drafting_core(8, lambda n: n % 2 == 0, info=make_info(num_blocks=8, max_model_len=32))
        messages = [make_message(4, max_tokens=12) for _ in range(2)]  # fill the pool at their end
        add(core, *messages)
        outputs = run(core)
        assert value_of(core, "num_preemptions_total") == 0
        for message in messages:
            assert outputs[message.request_id].token_ids == generate(message.prompt_token_ids, 12, VOCAB_SIZE)

    def test_blocks_of_wrong_tokens_are_given_back_at_once(self) -> None:
        core = make_drafting_core(8, lambda n: True)
        add(core, make_message(6, max_tokens=40))
        core.step()
        for _ in range(10):
            core.step()
            (request,) = core._scheduler._requests.values()
            assert core._scheduler._tables.num_slots(request) == -(-request.num_tokens // 4) * 4
            assert request.num_computed_tokens == request.num_tokens - 1

    def test_wrong_tokens_never_enter_the_prefix_cache(self) -> None:
        core = make_drafting_core(8, lambda n: n % 3 == 2)
        message = make_message(6, max_tokens=30)
        add(core, message)
        produced = run(core)[message.request_id].token_ids
        again = make_message(message.prompt_token_ids + produced, max_tokens=9)
        add(core, again)
        output = run(core)[again.request_id]  # the runner compares what it finds in the cached blocks
        assert output.num_cached_tokens == 32
        assert output.token_ids == generate(again.prompt_token_ids, 9, VOCAB_SIZE)

    def test_a_batch_may_be_too_large(self) -> None:
        core = make_drafting_core(4)
        assert core._scheduler._drafts is not None
        core._scheduler._drafts._max_rows = 2
        messages = [make_message(4, max_tokens=tokens) for tokens in (20, 20, 5)]
        add(core, *messages)
        core.step()
        core.step()
        assert set(drafts_of(core).values()) == {0}
        step_until(core, lambda: core.num_running == 2)
        core.step()
        assert set(drafts_of(core).values()) == {4}

    def test_none_under_a_grammar(self) -> None:
        core = make_drafting_core(4)
        plain = make_message(4)
        add(core, plain)
        core.step()
        (request,) = core._scheduler._requests.values()
        request.sampling = make_message(4, grammar=Grammar(kind="regex", source="a*")).sampling
        core.step()
        assert drafts_of(core) == {plain.request_id: 0}


class TestMetrics:
    def test_drafts_are_counted(self) -> None:
        core = make_drafting_core(4, lambda n: n == 3)
        add(core, make_message(6, max_tokens=11))
        run(core)
        # Token 0 is the prompt's; 1 2 (3 wrong) 4, so three come out; then 4 … 8; then one left with one after it.
        assert value_of(core, "spec_decode_num_drafts_total") == 3
        assert value_of(core, "spec_decode_num_draft_tokens_total") == 4 + 4 + 1
        assert value_of(core, "spec_decode_num_accepted_tokens_total") == 2 + 4 + 1
        by_position = [
            value_of(core, "spec_decode_num_accepted_tokens_per_pos_total", position=str(place)) for place in range(4)
        ]
        assert by_position == [3, 2, 1, 1]

    def test_there_are_none_without_speculation(self) -> None:
        assert "spec_decode" not in make_core().metrics.render()
        config = SpeculationConfig(num_speculative_tokens=2)
        assert "spec_decode_num_accepted_tokens_per_pos_total{" in make_core(speculation=config).metrics.render()


def test_steps_of_decoding_rows_teach_the_cost() -> None:
    core = make_drafting_core(4)
    cost = core._scheduler._step_time.decoding
    add(core, make_message(6, max_tokens=11))
    core.step()
    assert cost._weight == 0  # a prompt says nothing of drafts
    core.step()
    assert cost._n == 5
