"""A deterministic runner whose "KV" is checked: what a slot holds depends on every token before it, as in attention.

The value at position i is a hash of the value at i - 1, *read back through the block table*, and token i. The next
token is a function of the value at the last position. So a lost, shared or overwritten block changes the output, and
`execute` notices it at once. Drafts are checked token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from engine.awaited_tokens import AwaitedTokens, detach
from engine.messages import TokenLogprobs
from engine.step import RunnerInfo, StepInput, StepOutput, StepRow

MASK = (1 << 61) - 1


def chain(value: int, token_id: int) -> int:
    """The value of a position."""
    return (value * 6364136223846793005 + token_id * 2654435761 + 1442695040888963407) & MASK


def values_of(token_ids: Sequence[int]) -> Iterator[int]:
    """The right values of all positions."""
    value = 0
    for token_id in token_ids:
        value = chain(value, token_id)
        yield value


def next_token(value: int, vocab_size: int) -> int:
    """The token that follows a position of this value."""
    return (value >> 20) % vocab_size


def generate(token_ids: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """The `count` tokens that an undisturbed run produces after `token_ids`."""
    *_, value = values_of(token_ids)
    produced = []
    for _ in range(count):
        produced.append(next_token(value, vocab_size))
        value = chain(value, produced[-1])
    return produced


class ChainRunner:
    """Implements `engine.step.Runner`; keeps every step it was given."""

    def __init__(self, info: RunnerInfo, *, tokens_per_step: int = 1) -> None:
        self.info = info
        self.kv: dict[int, int] = {}
        self.steps: list[StepInput] = []
        self.on_write: Callable[[set[int]], None] = lambda block_ids: None  # told the blocks that a step writes into
        self.tokens_per_step = tokens_per_step

    def execute(self, step: StepInput) -> StepOutput:
        self.steps.append(step)
        written: set[int] = set()
        for row in step.rows:
            self._write(row, written)
        self.on_write({slot // self.info.block_size for slot in written})
        for row in step.rows:
            self._check(row)
        return StepOutput(
            token_ids=[self._sample(row) for row in step.rows],
            logprobs=[self._logprobs(row) for row in step.rows],
            prompt_logprobs=[self._prompt_logprobs(row) for row in step.rows],
        )

    def _slot(self, row: StepRow, position: int) -> int:
        block_id = row.block_ids[position // self.info.block_size]
        assert 0 <= block_id < self.info.num_blocks
        return block_id * self.info.block_size + position % self.info.block_size

    def _write(self, row: StepRow, written: set[int]) -> None:
        token_ids = row.prompt_token_ids + row.output_token_ids + row.draft_token_ids
        end = row.num_computed_tokens + row.num_scheduled_tokens
        assert row.num_scheduled_tokens > len(row.draft_token_ids)
        assert end <= min(len(token_ids), self.info.max_model_len)
        assert row.samples == (end == len(token_ids))
        assert row.samples or not row.draft_token_ids
        for position in range(row.num_computed_tokens, end):
            slot = self._slot(row, position)
            assert slot not in written, "two rows write one slot"
            written.add(slot)
            before = self.kv[self._slot(row, position - 1)] if position else 0
            self.kv[slot] = chain(before, token_ids[position])

    def _check(self, row: StepRow) -> None:
        token_ids = row.prompt_token_ids + row.output_token_ids + row.draft_token_ids
        end = row.num_computed_tokens + row.num_scheduled_tokens
        for position, value in enumerate(values_of(token_ids[:end])):
            assert self.kv[self._slot(row, position)] == value, f"{row.request_id} position {position} is corrupt"

    def _sample(self, row: StepRow) -> list[int]:
        if not row.samples:
            return []
        last_known = len(row.prompt_token_ids) + len(row.output_token_ids) - 1
        if row.draft_token_ids:
            return self._verify(row, last_known)
        value = self.kv[self._slot(row, last_known)]
        produced = []
        for _ in range(self.tokens_per_step):
            produced.append(next_token(value, self.info.vocab_size))
            value = chain(value, produced[-1])
        return produced

    def _verify(self, row: StepRow, last_known: int) -> list[int]:
        produced: list[int] = []
        for count in range(1 + len(row.draft_token_ids)):
            if produced != row.draft_token_ids[:count]:
                break
            produced.append(next_token(self.kv[self._slot(row, last_known + count)], self.info.vocab_size))
        return produced

    def _logprobs(self, row: StepRow) -> list[TokenLogprobs] | None:
        if row.sampling.logprobs is None:
            return None
        return [TokenLogprobs(token_id, -0.5, 1) for token_id in self._sample(row)]

    def _prompt_logprobs(self, row: StepRow) -> list[TokenLogprobs] | None:
        if not row.wants_prompt_logprobs:
            return None
        end = row.num_computed_tokens + row.num_scheduled_tokens
        chosen = row.prompt_token_ids[row.num_computed_tokens + 1 : end + 1]
        return [TokenLogprobs(token_id, -1.0, 2) for token_id in chosen]


class LateRunner(ChainRunner):
    """Implements `engine.step.TakesStepsAhead`: computes a step when it is waited for, as late as can be."""

    def __init__(self, info: RunnerInfo) -> None:
        super().__init__(info)
        self._awaited = AwaitedTokens()

    def submit(self, step: StepInput) -> Callable[[], StepOutput]:
        step = detach(step)

        def wait() -> StepOutput:
            self._awaited.fill(step)
            output = self.execute(step)
            self._awaited.take(step, output)
            return output

        return wait
