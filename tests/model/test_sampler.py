"""The sampler's order (http-surface 9.3) against the obvious arithmetic, and its independence of the batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.messages import SamplingParams
from engine.sampling.noise import MASK, MAX_GUMBEL, gumbel, row_keys
from engine.sampling.ranking import largest_ids
from engine.sampling.sampler import Sampler, draw
from engine.sampling.truncation import kept_ids
from engine.step import StepRow

EOS = frozenset({7})
SAMPLER = Sampler(EOS)
NEVER = float("-inf")


def row(prompt: list[int] | None = None, output: list[int] | None = None, **sampling: Any) -> StepRow:
    params = SamplingParams(**({"max_tokens": 99, "seed": 1, "temperature": 0.0} | sampling))
    return StepRow("r", [0] if prompt is None else prompt, output or [], 0, 1, [0], params, samples=True)


def pick(logits: Tensor, *rows: StepRow) -> list[int]:
    return [sampled.token_id for sampled in SAMPLER.sample(logits.clone(), list(rows))]


def processed(logits: Tensor, one: StepRow) -> Tensor:
    """What the sampler makes of the logits before it chooses."""
    logits = logits.clone()
    SAMPLER.process_(logits, one)
    return logits


# --- noise ---


def test_noise_is_the_documented_hash() -> None:
    def mix(h: int) -> int:
        h ^= h >> 16
        h = h * 0x85EBCA6B & MASK
        h ^= h >> 13
        h = h * 0xC2B2AE35 & MASK
        return h ^ (h >> 16)

    for seed, position in ((0, 0), (1, 5), (-1, 0), (-(2**63), 7), (2**63 - 1, 100_000)):
        low, high = seed % 2**64 % 2**32, seed % 2**64 >> 32
        b = mix(mix(low ^ 0x9E3779B9) ^ high)
        key = mix((b + position) % 2**32 ^ 0x7F4A7C15)
        key2 = mix(key ^ 0x165667B1)
        assert row_keys(seed, position) == (key, key2)
        ids = [0, 1, 2, 49151, 151935]
        uniform = [((mix(mix((t * 0x9E3779B9 + key) % 2**32) ^ key2) >> 8) + 0.5) * 2**-24 for t in ids]
        expected = [-math.log(-math.log(u)) for u in uniform]
        torch.testing.assert_close(gumbel(seed, position, torch.tensor(ids)), torch.tensor(expected).double())


def test_noise_looks_like_noise() -> None:
    values = gumbel(42, 0, torch.arange(200_000))
    assert values.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert values.std().item() == pytest.approx(math.pi / math.sqrt(6), abs=0.01)
    assert values.max() <= MAX_GUMBEL
    neighbours = [gumbel(42, 1, torch.arange(200_000)), gumbel(43, 0, torch.arange(200_000)), values.roll(1)]
    for other in neighbours:
        assert abs(torch.corrcoef(torch.stack([values, other]))[0, 1].item()) < 0.01


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.1])
    logits = probabilities.log()
    counts = torch.zeros(4)
    for seed in range(4000):
        counts[draw(logits, row(temperature=1.0, seed=seed, output=[0] * (seed % 5)))] += 1
    torch.testing.assert_close(counts / 4000, probabilities, atol=0.03, rtol=0)


def test_a_draw_is_the_best_of_the_whole_vocabulary() -> None:
    """Leaving out tokens that cannot win changes nothing."""
    torch.manual_seed(0)
    for seed in range(50):
        logits = torch.randn(3000) * (seed % 7 + 0.5)
        noise = gumbel(seed, 2, torch.arange(3000))
        scaled = (logits / 0.7).double()
        assert draw(logits, row(output=[1, 2], temperature=0.7, seed=seed)) == int((scaled + noise).argmax())


# --- choosing ---


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    logits = torch.zeros(2, 100)
    logits[0, [30, 20, 90]] = 5.0
    assert pick(logits, row(), row()) == [20, 0]


def test_tiny_temperature_is_greedy() -> None:
    assert pick(torch.tensor([[0.0, 1e4, 9e3]]), row(temperature=1e-6)) == [1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), NEVER])
def test_an_overflow_yields_some_token(value: float) -> None:
    logits = torch.zeros(1, 50)
    logits[0, 10 if value != NEVER else slice(None)] = value
    (token_id,) = pick(logits, row(temperature=1.0, top_p=0.9))
    assert 0 <= token_id < 50


def test_rows_do_not_depend_on_their_neighbours() -> None:
    torch.manual_seed(1)
    logits = torch.randn(24, 5003) * 3
    rows = [
        row(temperature=0.1 * (i % 5), seed=i, top_k=i % 3 * 20, top_p=1 - i % 4 * 0.1, min_p=i % 2 * 0.02, logprobs=3)
        for i in range(24)
    ]
    alone = [SAMPLER.sample(logits[i : i + 1].clone(), [rows[i]])[0] for i in range(24)]
    assert SAMPLER.sample(logits.clone(), rows) == alone
    order = torch.randperm(24).tolist()
    assert SAMPLER.sample(logits[order].clone(), [rows[i] for i in order]) == [alone[i] for i in order]


# --- masks, bias, penalties ---


def test_allowed_ids() -> None:
    found = processed(torch.arange(5.0), row(allowed_token_ids=[3, 1]))
    assert found.tolist() == [NEVER, 1, NEVER, 3, NEVER]


@pytest.mark.parametrize(
    ("output", "banned"), [([], {4}), ([5], {4, 6}), ([1, 2], {3, 4}), ([9, 1, 2], {3, 4}), ([2, 1], {4})]
)
def test_bad_words_end_only_after_their_beginning(output: list[int], banned: set[int]) -> None:
    found = processed(torch.zeros(10), row(output=output, bad_words_token_ids=[[1, 2, 3], [4], [5, 6]]))
    assert set((found == NEVER).nonzero().flatten().tolist()) == banned


def test_bad_words_look_at_the_output_alone() -> None:
    assert processed(torch.zeros(10), row(prompt=[5], bad_words_token_ids=[[5, 6]])).isfinite().all()


def test_min_tokens_mask_eos_and_stop_ids_until_then() -> None:
    early, late = row(output=[1], min_tokens=2, stop_token_ids=[3]), row(output=[1, 1], min_tokens=2)
    assert (processed(torch.zeros(10), early) == NEVER).nonzero().flatten().tolist() == [3, 7]
    assert processed(torch.zeros(10), late).isfinite().all()


def test_what_is_allowed_wins_over_what_is_banned() -> None:
    assert pick(torch.zeros(1, 10), row(allowed_token_ids=[7], min_tokens=5)) == [7]


def test_logit_bias_can_change_the_argmax_but_not_a_mask() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    assert pick(logits, row(logit_bias={2: 2.5})) == [2]
    assert pick(logits, row(logit_bias={2: 100.0}, allowed_token_ids=[0, 3])) == [3]


def test_penalties() -> None:
    logits = torch.tensor([2.0, -2.0, 2.0, 2.0])
    seen = processed(logits, row(prompt=[0, 1], output=[2], repetition_penalty=2.0))
    assert seen.tolist() == [1.0, -4.0, 1.0, 2.0]
    counted = processed(logits, row(prompt=[0], output=[1, 2, 1], frequency_penalty=0.5, presence_penalty=0.25))
    assert counted.tolist() == [2.0, -3.25, 1.25, 2.0]


# --- truncation ---


def kept(logits: list[float], **sampling: Any) -> list[int]:
    ids: list[int] = kept_ids(torch.tensor(logits), row(**sampling).sampling).tolist()
    return ids


def test_top_k_keeps_the_lower_ids_of_equals() -> None:
    assert kept([1.0, 2.0, 1.0, 3.0, 1.0], top_k=3) == [0, 1, 3]
    assert kept([0.0] * 5, top_k=2) == [0, 1]
    assert kept([1.0, 2.0], top_k=99) == [0, 1]


def test_top_p_keeps_the_token_that_reaches_it() -> None:
    logits = [math.log(p) for p in (0.1, 0.5, 0.15, 0.25)]
    assert kept(logits, top_p=0.5 - 1e-6) == [1]
    assert kept(logits, top_p=0.6) == [1, 3]
    assert kept(logits, top_p=0.89) == [1, 2, 3]
    assert kept(logits, top_p=1e-9) == [1]
    assert kept([0.0] * 4, top_p=0.5) == [0, 1]


def test_top_p_counts_within_top_k() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert kept(logits, top_k=2, top_p=0.5) == [0]  # 0.4 of 0.7 is 57 %


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
    assert kept(logits, min_p=0.29) == [0, 1, 2]
    assert kept(logits, min_p=1.0) == [0]


def test_masked_tokens_are_never_kept() -> None:
    assert kept([NEVER, 1.0, NEVER], top_k=3, top_p=0.99) == [1]
    assert kept([NEVER, 1.0, 0.0], top_p=0.9999) == [1, 2]


def test_a_wide_nucleus_needs_a_second_look() -> None:
    assert len(kept([0.0] * 5000, top_p=0.9)) == pytest.approx(4500, abs=1)
    assert kept([0.0] * 5000, top_p=0.2) == list(range(1000))


def test_largest_ids_is_a_stable_sort() -> None:
    torch.manual_seed(0)
    values = torch.randint(0, 5, (200,)).float()
    expected = sorted(range(200), key=lambda i: (-values[i].item(), i))
    for count in (1, 7, 100, 200, 500):
        assert largest_ids(values, count).tolist() == expected[:count]


# --- logprobs ---


def test_logprobs_are_raw_and_ranked() -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0, 3.0]])
    expected = torch.log_softmax(logits[0], -1)
    one = row(logprobs=2, logit_bias={0: 100.0}, temperature=0.0, logprob_token_ids=[3, 0, 0])
    (found,) = SAMPLER.sample(logits.clone(), [one])
    assert found.token_id == 0
    assert found.logprobs is not None
    assert (found.logprobs.token_id, found.logprobs.rank) == (0, 4)
    assert found.logprobs.logprob == pytest.approx(expected[0].item())
    assert [token_id for token_id, _ in found.logprobs.top] == [1, 3, 0]
    assert [value for _, value in found.logprobs.top] == pytest.approx(expected[[1, 3, 0]].tolist())


@pytest.mark.parametrize(("asked", "listed"), [(0, 0), (1, 1), (3, 3), (-1, 4), (9, 4)])
def test_logprobs_hold_exactly_what_was_asked_for(asked: int, listed: int) -> None:
    (found,) = SAMPLER.sample(torch.tensor([[1.0, 4.0, 2.0, 3.0]]), [row(logprobs=asked)])
    assert found.logprobs is not None
    assert [token_id for token_id, _ in found.logprobs.top] == [1, 3, 2, 0][:listed]


def test_no_logprobs_unless_asked_for() -> None:
    assert SAMPLER.sample(torch.zeros(1, 4), [row()])[0].logprobs is None
