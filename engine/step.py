"""The meeting place of scheduler and runner: one step's work and one step's result. No torch.

Plain data, so that it can be broadcast to the ranks of a tensor-parallel group. In the engine's own process the
lists are the request's own (not copies): the runner must not change them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from engine.errors import EngineError
from engine.messages import SamplingParams, TokenLogprobs

if TYPE_CHECKING:  # the engine's socket is bound before numpy is loaded
    import numpy as np
    from numpy.typing import NDArray


@dataclass(slots=True)
class StepRow:
    """One request's share of a step: compute tokens ``[num_computed_tokens, + num_scheduled_tokens)``.

    Token ``i`` of a request is ``prompt_token_ids[i]`` or, past the prompt, ``output_token_ids[i - len(prompt)]``.
    ``block_ids`` covers every token up to the end of this step. ``samples`` is True when the row reaches the last
    known token, so that a new token is drawn, for output position ``num_output_tokens``.

    ``draft_token_ids`` are guesses of what comes next: they are computed behind the last known token (and counted in
    ``num_scheduled_tokens``), and one more token is drawn after each that turns out right. Only rows that sample have
    any, and only without a grammar.

    ``awaits_token`` is True where the step before this one has yet to draw the last token: it is missing from
    ``output_token_ids``, counts all the same, and is the only one that the row computes.
    """

    request_id: str
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    num_computed_tokens: int
    num_scheduled_tokens: int
    block_ids: list[int]
    sampling: SamplingParams
    samples: bool
    wants_prompt_logprobs: bool = False  # this chunk's prompt logprobs are asked for
    token_mask: NDArray[np.int32] | None = None  # bit t % 32 of word t // 32: a grammar allows token t
    draft_token_ids: list[int] = field(default_factory=list)
    awaits_token: bool = False

    @property
    def num_output_tokens(self) -> int:
        """Output tokens before this step, the awaited one included."""
        return len(self.output_token_ids) + self.awaits_token

    @property
    def is_decoding(self) -> bool:
        """Whether the row computes its last known token and, perhaps, a draft."""
        return self.samples and self.num_scheduled_tokens == 1 + len(self.draft_token_ids)


@dataclass(slots=True)
class StepInput:
    """Rows in scheduling order; never empty."""

    rows: list[StepRow]

    @property
    def num_tokens(self) -> int:
        """Tokens this step computes."""
        return sum(row.num_scheduled_tokens for row in self.rows)


@dataclass(slots=True)
class StepOutput:
    """Parallel to `StepInput.rows`.

    ``token_ids[r]`` is the list of new tokens of row r: empty where it does not sample, else the draft tokens that are
    exactly what was drawn, up to the first that is not, and one more. ``logprobs[r]`` is parallel to it where asked
    for, else None. ``prompt_logprobs[r]`` holds this chunk's entries: for a chunk that computes prompt positions [a, b)
    the logprobs of prompt tokens a+1 … min(b, p-1).
    """

    token_ids: list[list[int]]
    logprobs: list[list[TokenLogprobs] | None] = field(default_factory=list)
    prompt_logprobs: list[list[TokenLogprobs] | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInfo:
    """What loading found out; the scheduler is built from it."""

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    dtype: str
    device: str
    context_cost: float = 0.0  # what each token before it adds to a token's work, as a part of that without any


class Runner(Protocol):
    """Owns model, KV tensors and sampler; executes one step."""

    @property
    def info(self) -> RunnerInfo:
        """Facts found while loading."""

    def execute(self, step: StepInput) -> StepOutput:
        """Run one forward pass and sample. Any exception is a fault of the engine, not of a request."""


@runtime_checkable
class TakesStepsAhead(Protocol):
    """A runner that takes a step before the one before it is done, with rows that await that one's tokens.

    At most two are under way, and they are waited for in order.
    """

    def submit(self, step: StepInput) -> Callable[[], StepOutput]:
        """Have a step computed after those before it. What is returned waits for it, and raises what it raised."""


@runtime_checkable
class HasProcesses(Protocol):
    """A runner that is more than one process: it can fail between steps, too, and has to be ended."""

    def on_fault(self, report: Callable[[EngineError], None]) -> None:
        """Have `report` called, in another thread, when no step can be executed any more."""

    def close(self) -> None:
        """End the processes."""


Progress = Callable[[str, float], None]
"""Called while loading: (phase, percent of the whole start, 0 … 100)."""
