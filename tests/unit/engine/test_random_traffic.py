"""Any traffic at all: no block is lost, shared by mistake or freed twice; each request gets its undisturbed result.

The runner checks what each row reads; here every block is accounted for after every step.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.core import EngineCore
from engine.messages import GenerateRequest, RequestOutput, merge_outputs
from engine.request import RequestStatus
from tests.unit.engine.builders import make_config, make_core, make_info, make_message
from tests.unit.engine.chain_runner import ChainRunner, LateRunner, generate, values_of
from tests.unit.engine.drafting import make_drafting_core

VOCAB_SIZE = 40
EOS = 0
BEGINNINGS = [list(range(1, 1 + length)) for length in (0, 3, 8, 17)]


def expected_outcome(message: GenerateRequest, max_model_len: int) -> tuple[list[int], str]:
    """What the request produces when nothing else happens; written without looking at the engine's stop rule."""
    prompt, sampling = message.prompt_token_ids, message.sampling
    num_left = min(sampling.max_tokens, max_model_len - len(prompt))
    token_ids = generate(prompt, num_left, VOCAB_SIZE)
    for count, token_id in enumerate(token_ids, start=1):
        if count >= sampling.min_tokens and (token_id in sampling.stop_token_ids or token_id == EOS):
            return token_ids[:count], "stop"
    return token_ids, "length"


@dataclass
class Traffic:
    """An engine under test, and what is known of its requests."""

    core: EngineCore
    messages: dict[str, GenerateRequest] = field(default_factory=dict)
    outputs: dict[str, RequestOutput] = field(default_factory=dict)
    block_values: dict[bytes, tuple[int, ...]] = field(default_factory=dict)
    block_salts: dict[bytes, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runner.on_write = self.check_written

    @property
    def runner(self) -> ChainRunner:
        runner = self.core._runner
        assert isinstance(runner, ChainRunner)
        return runner

    def add(self, message: GenerateRequest) -> None:
        expected, _ = expected_outcome(message, self.core.info.max_model_len)
        self._learn(message, expected)
        resumed = message.resumed_token_ids
        self.messages[message.request_id] = message
        self.outputs[message.request_id] = RequestOutput(request_id=message.request_id, token_ids=list(resumed))
        self.take([output for output in [self.core.add(message)] if output])

    def _learn(self, message: GenerateRequest, expected: list[int]) -> None:
        """Which values belong to which hash."""
        hasher, size = self.core._scheduler._tables._hasher, self.core.info.block_size
        token_ids = message.prompt_token_ids + expected
        values = list(values_of(token_ids))
        block_hash = hasher.root(message.cache_salt)
        for start in range(0, len(token_ids) - size + 1, size):
            block_hash = hasher.block(block_hash, token_ids[start : start + size])
            self.block_values[block_hash] = tuple(values[start : start + size])
            assert self.block_salts.setdefault(block_hash, message.cache_salt) == message.cache_salt

    def step(self) -> None:
        self.take(self.core.step())

    def check_written(self, block_ids: set[int]) -> None:
        """A step writes into blocks of one request, which nobody can find yet. What is computed ahead may turn out to
        be for a request that has ended: those blocks are free, or another's who has not written yet.
        """
        blocks = [self.core._scheduler._tables.pool.blocks[block_id] for block_id in block_ids]
        fewest = 0 if self.core._steps else 1
        assert all(fewest <= block.ref_count <= 1 and block.block_hash is None for block in blocks)

    def abort(self, request_ids: list[str]) -> None:
        self.take(self.core.abort(request_ids))

    def take(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            assert self.outputs[output.request_id].finish_reason is None
            merge_outputs(self.outputs[output.request_id], output)

    def check_blocks(self) -> None:
        scheduler = self.core._scheduler
        pool = scheduler._tables.pool
        tables = scheduler._tables._tables
        users: Counter[int] = Counter()
        for table in tables.values():
            assert len(set(table.block_ids)) == len(table.block_ids)
            users.update(table.block_ids)
        assert [block.ref_count for block in pool.blocks] == [users[index] for index in range(pool.num_blocks)]
        places = [*pool._blank, *pool._idle, *users]
        assert sorted(places) == list(range(pool.num_blocks))
        assert tables.keys() == scheduler._requests.keys()

    def check_cache(self) -> None:
        pool = self.core._scheduler._tables.pool
        size = self.core.info.block_size
        registered = {block.block_hash: block.block_id for block in pool.blocks if block.block_hash is not None}
        assert registered == pool._by_hash
        assert all(pool.blocks[block_id].block_hash is None for block_id in pool._blank)
        for block_hash, block_id in registered.items():
            held = tuple(self.runner.kv[block_id * size + offset] for offset in range(size))
            assert held == self.block_values[block_hash]

    def check_requests(self) -> None:
        scheduler = self.core._scheduler
        running = {request.request_id for request in scheduler._running}
        assert scheduler.num_running + scheduler.num_waiting == scheduler.num_requests
        for request_id, request in scheduler._requests.items():
            block_ids = scheduler._tables.block_ids(request)
            assert (request.status is RequestStatus.RUNNING) == (request_id in running) == bool(block_ids)
            size = self.core.info.block_size
            assert request.num_computed_ahead <= len(block_ids) * size < request.num_tokens_ahead + size
        assert set(scheduler._tables._computing.values()) <= running

    def check(self) -> None:
        self.check_blocks()
        self.check_cache()
        self.check_requests()

    def check_results(self) -> None:
        for request_id, message in self.messages.items():
            output = self.outputs[request_id]
            token_ids, reason = expected_outcome(message, self.core.info.max_model_len)
            if output.finish_reason == "abort":
                assert output.token_ids == token_ids[: len(output.token_ids)]
                continue
            assert (output.token_ids, output.finish_reason) == (token_ids, reason)
            if message.sampling.prompt_logprobs is not None and not message.resumed_token_ids:
                assert output.prompt_logprobs is not None
                told = [entry.token_id for entry in output.prompt_logprobs if entry]
                assert [output.prompt_logprobs[0], *told] == [None, *message.prompt_token_ids[1:]]


@st.composite
def cores(draw: st.DrawFn) -> EngineCore:
    block_size = draw(st.sampled_from([1, 2, 4]))
    num_blocks = draw(st.integers(44 // block_size, 72 // block_size))
    knobs: dict[str, Any] = {
        "max_num_seqs": draw(st.integers(2, 8)),
        "max_num_batched_tokens": draw(st.integers(1, 64)),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "fair_step_tokens": draw(st.sampled_from([0, 0, 1, 4])),
        "enable_prefix_caching": draw(st.sampled_from([True, True, True, False])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 1, 5])),
    }
    # Steps of 0.3 to 4 ms each, as the clock has it.
    clock = itertools.accumulate(itertools.cycle([0.0003, 0.001, 0.004, 0.0005])).__next__
    knobs["max_step_ms"] = draw(st.sampled_from([0, 1, 3, 20]))
    max_model_len = draw(st.integers(44, 120))
    if draw(st.integers(0, 4)) == 0:
        knobs |= {"enable_chunked_prefill": False, "max_num_batched_tokens": 128}
    info = make_info(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset({EOS}),
    )
    if draw(st.booleans()):
        spoilt = draw(st.integers(1, 9))  # one in so many draft tokens is wrong
        return make_drafting_core(
            draw(st.integers(1, 9)), lambda number: number % spoilt == 0, info=info, clock=clock, **knobs
        )
    if draw(st.booleans()):
        make_runner = draw(st.sampled_from([ChainRunner, LateRunner]))
        return EngineCore(make_config(async_scheduling=True, **knobs), make_runner(info), clock=clock)
    return make_core(info=info, clock=clock, tokens_per_step=draw(st.sampled_from([1, 1, 1, 3])), **knobs)


@st.composite
def messages(draw: st.DrawFn) -> GenerateRequest:
    ending = draw(st.lists(st.integers(1, 3), min_size=1, max_size=20))
    return make_message(
        draw(st.sampled_from(BEGINNINGS)) + ending,
        max_tokens=draw(st.integers(1, 40) | st.just(40)),
        min_tokens=draw(st.sampled_from([0, 0, 5])),
        stop_token_ids=draw(st.sampled_from([[], [], [7]])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0])),
        cache_salt=draw(st.sampled_from([None, None, "a", "b"])),
        priority=draw(st.integers(0, 2)),
        tenant=draw(st.sampled_from(["", "", "a", "b"])),
        arrival_time=draw(st.sampled_from([1.0, 2.0])),
    )


def resume(message: GenerateRequest, num_resumed: int, max_model_len: int) -> GenerateRequest:
    """The same request as a worker sends it after the engine was lost, not yet at its end."""
    produced, _ = expected_outcome(message, max_model_len)
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return GenerateRequest(**(fields | {"resumed_token_ids": produced[:-1][:num_resumed]}))


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), messages(), st.just(0)),
        st.tuples(st.just("resume"), messages(), st.integers(1, 30)),
        st.tuples(st.just("step"), st.none(), st.integers(1, 12)),
        st.tuples(st.just("abort"), st.none(), st.integers(0, 30)),
        st.tuples(st.just("reset"), st.none(), st.just(0)),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(core=cores(), burst=st.lists(messages(), min_size=1, max_size=6), operations=OPERATIONS)
def test_random_traffic(
    core: EngineCore, burst: list[GenerateRequest], operations: list[tuple[str, GenerateRequest | None, int]]
) -> None:
    traffic = Traffic(core)
    for message in burst:
        traffic.add(message)
    for kind, message, number in operations:
        if message is not None:
            traffic.add(resume(message, number, core.info.max_model_len) if kind == "resume" else message)
        elif kind == "abort":
            traffic.abort([*list(traffic.messages)[number : number + 1], "unknown"])
        elif kind == "reset":
            assert core.reset_prefix_cache() == (core.kv_cache_usage == 0)
        for _ in range(number if kind == "step" else 0):
            traffic.step()
            traffic.check()
        traffic.check()
    for _ in range(20_000):
        if not core.has_work():
            break
        traffic.step()
        traffic.check()
    assert not core.has_work()
    core.close()
    assert (core.num_running, core.num_waiting, core.kv_cache_usage) == (0, 0, 0)
    traffic.check_results()
