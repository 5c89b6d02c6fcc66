"""The short ways of a decode step on a CPU against the general ones: the same arrays, logits, tokens, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.kernels.native.targets import is_built
from engine.messages import SamplingParams
from engine.runner.forward_pass import ForwardPass
from engine.runner.inputs import DecodeArrays, StepArrays, make_arrays, place_inputs
from engine.runner.native_step import NativeStep
from engine.sampling.device import DeviceSampler
from engine.sampling.native_draws import NativeDraws
from engine.step import StepInput, StepRow
from tests.model.driver import Engine
from tests.tiny_models import TinyModel

CPU = torch.device("cpu")
BLOCK_SIZE = 16
GREEDY = SamplingParams(max_tokens=9, seed=0, temperature=0.0)
needs_library = pytest.mark.skipif(not is_built(), reason="the C++ library is not built")


def make_row(rng: random.Random, vocab_size: int, block_ids: list[int], sampling: SamplingParams = GREEDY) -> StepRow:
    """A row that decodes, with as many tokens as its blocks may just hold."""
    num_tokens = rng.randint((len(block_ids) - 1) * BLOCK_SIZE + 1, len(block_ids) * BLOCK_SIZE)
    token_ids = [rng.randrange(vocab_size) for _ in range(num_tokens)]
    num_prompt = rng.randint(1, num_tokens)
    return StepRow("r", token_ids[:num_prompt], token_ids[num_prompt:], num_tokens - 1, 1, block_ids, sampling, True)


def make_steps(rng: random.Random, vocab_size: int, num_blocks: int) -> Iterator[StepInput]:
    """Decode steps as they follow one another: rows go on, get blocks, lose some, come and go, change places."""
    rows: list[StepRow] = []
    free = list(range(num_blocks))
    for _ in range(60):
        if not rows or rng.random() < 0.3:
            rows.append(make_row(rng, vocab_size, [free.pop() for _ in range(rng.randint(1, 3))]))
        if len(rows) > 1 and rng.random() < 0.3:
            free += rows.pop(rng.randrange(len(rows))).block_ids
        if rng.random() < 0.1:
            rng.shuffle(rows)
        if rng.random() < 0.1:  # another block in the place of one, as after a draft that was wrong
            free.insert(0, rows[0].block_ids[-1])
            rows[0].block_ids[-1] = free.pop()
        yield StepInput(list(rows))
        for row in rows:
            row.output_token_ids.append(rng.randrange(vocab_size))
            row.num_computed_tokens += 1
            if row.num_computed_tokens == len(row.block_ids) * BLOCK_SIZE:
                row.block_ids.append(free.pop())


def assert_equal(found: StepArrays, expected: StepArrays) -> None:
    width = expected.block_tables.shape[1]
    for name in ("token_ids", "positions", "slots", "query_start_loc", "seq_lens", "sample_rows"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name
        assert getattr(found, name).dtype == getattr(expected, name).dtype, name
    assert found.block_tables[:, :width].tolist() == expected.block_tables.tolist()
    assert not found.block_tables[:, width:].any()
    assert found.is_decode


@pytest.mark.parametrize("seed", range(20))
def test_arrays_that_are_used_again_are_those_made_anew(seed: int) -> None:
    arrays = DecodeArrays(BLOCK_SIZE)
    for step in make_steps(random.Random(seed), 1000, 200):
        assert arrays.holds(step)
        assert_equal(arrays.make(step), make_arrays(step, BLOCK_SIZE))


def test_steps_of_one_size_are_in_one_place() -> None:
    """That is what the native step goes by."""
    rng, arrays = random.Random(1), DecodeArrays(BLOCK_SIZE)
    rows = [make_row(rng, 1000, [0, 1]), make_row(rng, 1000, [2])]
    first = arrays.make(StepInput(rows))
    assert arrays.make(StepInput([rows[1], rows[0]])) is first
    wide = make_row(rng, 1000, list(range(3, 33)))
    assert arrays.make(StepInput([rows[0], wide])) is first, "a row that gets a block begins nothing anew"
    assert arrays.make(StepInput(rows[:1])) is not first
    assert arrays.make(StepInput([make_row(rng, 1000, list(range(100)))])).block_tables.shape[1] >= 100


def test_other_steps_are_not_held() -> None:
    row = make_row(random.Random(2), 1000, [0, 1])
    chunk = StepRow("p", [1, 2, 3], [], 0, 2, [5], GREEDY, False)
    inner = StepRow("p", [1, 2, 3], [], 0, 1, [5], GREEDY, False)
    draft = StepRow("d", [1, 2], [3], 2, 2, [5], GREEDY, True, draft_token_ids=[4])
    awaiting = StepRow("a", [1, 2], [3], 3, 1, [5], GREEDY, True, awaits_token=True)
    for other in (chunk, inner, draft, awaiting):
        assert not DecodeArrays.holds(StepInput([row, other]))


@pytest.fixture(params=["llama", "llama-tied-biased", "mistral-window", "qwen3", "shipped"])
def forward(request: pytest.FixtureRequest, tiny: Callable[[str], TinyModel], shipped_model: Path) -> ForwardPass:
    if request.param == "shipped":
        return Engine(shipped_model, "cpu", num_gpu_blocks_override=64, max_model_len=512).runner._forward
    return Engine(tiny(request.param).baked, "cpu", num_gpu_blocks_override=64).runner._forward


def run_ops(forward: ForwardPass, arrays: StepArrays) -> Tensor:
    """Logits of a step by the model's ops one by one."""
    inputs = place_inputs(arrays, BLOCK_SIZE, CPU)
    hidden = forward._model.forward(inputs.token_ids, inputs.batch, forward._kv_cache)
    return forward._model.compute_logits(hidden, inputs.sample_rows)


def fill_cache(forward: ForwardPass, vocab_size: int) -> None:
    """Every block holds keys and values of some token."""
    for block in range(64):
        row = StepRow("f", [(7 * block + i) % vocab_size for i in range(16)], [], 0, 16, [block], GREEDY, True)
        run_ops(forward, make_arrays(StepInput([row]), BLOCK_SIZE))


@needs_library
@torch.inference_mode()
def test_a_native_step_has_the_bits_of_the_ops(forward: ForwardPass) -> None:
    native, vocab_size = forward._native, forward._model.config.vocab_size
    assert isinstance(native, NativeStep)
    fill_cache(forward, vocab_size)
    arrays, rng = DecodeArrays(BLOCK_SIZE), random.Random(3)
    for step in make_steps(rng, vocab_size, 64):
        expected = run_ops(forward, make_arrays(step, BLOCK_SIZE))
        again = arrays.make(step)
        if rng.random() < 0.5:
            assert torch.equal(native.compute_logits(again), expected)
        assert native.pick_likeliest(again) == expected.argmax(-1).tolist()


@needs_library
def test_a_native_step_in_and_out_of_inference_mode(forward: ForwardPass) -> None:
    """Plain rows are picked outside, the logits for others are made inside, over the same memory."""
    assert forward._native is not None
    rng = random.Random(4)
    arrays = DecodeArrays(BLOCK_SIZE).make(StepInput([make_row(rng, forward._model.config.vocab_size, [3, 4])]))
    with torch.inference_mode():
        likeliest = forward._native.compute_logits(arrays).argmax(-1).tolist()
    assert forward._native.pick_likeliest(arrays) == likeliest


@needs_library
def test_a_native_step_refuses_other_steps(forward: ForwardPass) -> None:
    assert forward._native is not None
    row = StepRow("p", [1, 2, 3], [], 0, 2, [5], GREEDY, False)
    with pytest.raises(ValueError, match="decode step"):
        forward._native.pick_likeliest(make_arrays(StepInput([row]), BLOCK_SIZE))


KINDS = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.3, "min_p": 0.05, "top_k": 50, "top_p": 0.9},
    {"temperature": 1e-7},
)


@needs_library
def test_draws_whose_parameters_are_found_again() -> None:
    rng, generator = random.Random(5), torch.Generator().manual_seed(5)
    draws, sampler = NativeDraws(), DeviceSampler(frozenset(), "cpu")
    rows: list[StepRow] = []
    for _ in range(80):
        if not rows or rng.random() < 0.2:
            sampling = SamplingParams(max_tokens=99, seed=rng.getrandbits(63), **rng.choice(KINDS))
            rows.append(make_row(rng, 300, [0, 1], sampling))
        if len(rows) > 1 and rng.random() < 0.2:
            rows.pop(rng.randrange(len(rows)))
        logits = 3 * torch.randn(len(rows), 300, generator=generator)
        found = draws.draw(logits.clone(), rows)
        assert found == sampler.draw(logits.clone(), rows).tolist()
        for row, token_id in zip(rows, found, strict=True):
            row.output_token_ids.append(token_id)


@needs_library
def test_draws_refuse_logits_of_other_rows() -> None:
    with pytest.raises(ValueError, match="one row for each"):
        NativeDraws().draw(torch.zeros(2, 8), [make_row(random.Random(6), 8, [0])])
    with pytest.raises(ValueError, match="not contiguous"):
        NativeDraws().draw(torch.zeros(1, 16)[:, ::2], [make_row(random.Random(6), 8, [0])])
