"""Guessing: the index against a search by hand, chances and costs, and drafts that come and go with what pays."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import SpeculationConfig
from engine.request import Request, Timeline
from engine.speculation.acceptance import Acceptance
from engine.speculation.ngram import NUM_CANDIDATES, NgramIndex
from engine.speculation.speculator import MAX_INDEXED, Speculator
from tests.unit.engine.builders import make_message


def make_request(prompt: list[int]) -> Request:
    message = make_message(prompt, max_tokens=10_000)
    return Request(message.request_id, prompt, [], message.sampling, Timeline(0.0, 0.0))


def find_by_hand(tokens: list[int], shortest: int, longest: int) -> tuple[int, int] | None:
    """Where the latest of the longest matches ends, and its length."""
    for length in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                return end, length
    return None


class TestIndex:
    @given(
        tokens=st.lists(st.integers(0, 2), min_size=1, max_size=NUM_CANDIDATES + 4),
        shortest=st.integers(1, 3),
        more=st.integers(0, 3),
        count=st.integers(1, 6),
    )
    def test_it_finds_the_latest_of_the_longest(self, tokens, shortest, more, count):
        index = NgramIndex(shortest, shortest + more)
        index.extend(tokens)
        found, expected = index.find(count), find_by_hand(tokens, shortest, shortest + more)
        if expected is None:
            assert found is None
            return
        end, length = expected
        following = list(tokens)
        for place in range(count):
            following.append(following[end + place])
        assert found is not None
        assert (found.token_ids, found.length) == (following[len(tokens) :], length)

    def test_tokens_may_come_in_any_pieces(self):
        tokens = [1, 2, 3, 9, 1, 2, 3]
        whole, pieces = NgramIndex(2, 4), NgramIndex(2, 4)
        whole.extend(tokens)
        for token_id in tokens:
            pieces.extend([token_id])
        assert whole.find(3) == pieces.find(3)
        assert len(pieces) == 7

    def test_a_loop_goes_on(self):
        index = NgramIndex(2, 5)
        index.extend([7, 1, 2, 1, 2, 1, 2])
        found = index.find(5)
        assert found is not None
        assert found.token_ids == [1, 2, 1, 2, 1]

    def test_a_step_costs_microseconds_however_long_the_request(self):
        rng = random.Random(0)
        index = NgramIndex(2, 5)
        index.extend(rng.randrange(50) for _ in range(100_000))  # every pair occurs 40 times
        times = []
        for _ in range(2000):
            started_s = time.perf_counter()
            index.extend([rng.randrange(50)])
            index.find(8)
            times.append(time.perf_counter() - started_s)
        assert sorted(times)[1000] < 100e-6  # measured: 6 µs


class TestAcceptance:
    def test_it_starts_in_the_middle_and_learns(self):
        acceptance = Acceptance()
        assert acceptance.chance(3) == 0.5
        acceptance.record(3, 4, was_wrong=False)
        assert acceptance.chance(3) == 0.75
        for _ in range(50):
            acceptance.record(3, 0, was_wrong=True)
        assert acceptance.chance(3) < 0.15
        assert acceptance.chance(5) == 0.5  # another length of match is another matter

    def test_a_request_starts_from_what_all_have_seen(self):
        shared = Acceptance()
        first, second = Acceptance(shared), Acceptance(shared)
        for _ in range(100):
            first.record(3, 5, was_wrong=False)
        assert second.chance(3) > 0.9
        for _ in range(30):
            second.record(3, 0, was_wrong=True)
        assert second.chance(3) < 0.4
        assert first.chance(3) > 0.9


class TestSpeculator:
    @staticmethod
    def make(**fields) -> Speculator:
        return Speculator(SpeculationConfig(**({"num_speculative_tokens": 6} | fields)))

    def test_a_draft_is_what_followed(self):
        speculator = self.make(adaptive=False)
        assert speculator.propose(make_request([1, 2, 3, 4, 5, 6, 7, 8, 1, 2]), 99, 0.9) == [3, 4, 5, 6, 7, 8]
        assert speculator.propose(make_request([1, 2, 3, 4, 1, 2]), 3, 0.9) == [3, 4, 1]
        assert speculator.propose(make_request([1, 2, 3, 4]), 99, 0.0) == []
        assert speculator.propose(make_request([1, 2, 1, 2]), 0, 0.0) == []

    @pytest.mark.parametrize(("relative_cost", "length"), [(0.0, 6), (0.01, 6), (0.2, 2), (0.4, 1), (0.5, 0), (0.9, 0)])
    def test_it_is_as_long_as_it_pays(self, relative_cost, length):
        assert len(self.make().propose(make_request([1, 2, 3, 4, 1, 2]), 99, relative_cost)) == length

    def test_drafts_get_longer_while_they_are_right(self):
        speculator, request = self.make(), make_request([*range(100), 0, 1])
        lengths = []
        while request.num_output_tokens < 80:
            draft = speculator.propose(request, 99, 0.25)
            lengths.append(len(draft))
            speculator.record(request, len(draft), len(draft))
            request.output_token_ids += [*draft, request.num_output_tokens + 2 + len(draft)]
        assert lengths[0] == 1
        assert lengths == sorted(lengths)
        assert lengths[-1] == 6

    def test_it_ends_where_they_are_wrong_and_is_back_when_they_would_be_right(self):
        speculator, prompt = self.make(), [*range(100)]
        request = make_request(prompt)
        computed = self._produce(
            speculator, request, [token for start in range(60) for token in (start, start + 1, 777)]
        )
        assert sum(computed[:30]) > 0
        assert sum(computed[-60:]) == 0  # two tokens match, the third is never what followed
        computed = self._produce(speculator, request, prompt[:90])
        assert sum(computed[-30:]) > 60  # found out by watching alone

    @staticmethod
    def _produce(speculator: Speculator, request: Request, tokens: list[int]) -> list[int]:
        """Output goes on with `tokens`; lengths of the drafts at each step."""
        lengths, place = [], 0
        while place < len(tokens):
            draft = speculator.propose(request, len(tokens) - place - 1, 0.25)
            num_right = 0
            while num_right < len(draft) and draft[num_right] == tokens[place + num_right]:
                num_right += 1
            if draft:
                speculator.record(request, len(draft), num_right)
            request.output_token_ids += tokens[place : place + num_right + 1]
            place += num_right + 1
            lengths.append(len(draft))
        return lengths

    def test_a_long_prompt_is_taken_in_over_several_steps(self):
        speculator = self.make()
        request = make_request([1, 2, 3] * MAX_INDEXED)
        drafts = [speculator.propose(request, 99, 0.1) for _ in range(4)]
        assert [bool(draft) for draft in drafts] == [False, False, True, True]
