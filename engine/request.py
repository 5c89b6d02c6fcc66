"""A request's host state between steps: its tokens, how far it is computed, when it passed which point.

Knows nothing of blocks (`engine.cache`) or of when it runs (`engine.scheduler`); both keep their marks on it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.journal import make_key
from engine.messages import GenerateRequest, SamplingParams, TokenLogprobs

if TYPE_CHECKING:
    from engine.grammar.state import GrammarState
    from engine.speculation.speculator import RequestSpeculation


class RequestStatus(enum.Enum):
    """Where a request stands. A preempted one waits as well, in front."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED = enum.auto()


@dataclass(slots=True)
class Timeline:
    """Points in time, in seconds of one monotonic clock; None until the point is passed."""

    arrived_s: float
    queued_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None


@dataclass(slots=True, eq=False)
class Request:
    """One thing the engine generates for. Token ``i`` is a prompt token or, past the prompt, an output token."""

    request_id: str
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    sampling: SamplingParams
    timeline: Timeline
    arrival_time: float = 0.0
    priority: int = 0
    cache_salt: str | None = None
    tenant: str = ""
    arrival_index: int = 0  # given by the scheduler: breaks ties of arrival_time
    key: bytes = b""  # its name in the journal, the same in every engine
    num_faults: int = 0  # of engines that had it in hand: a suspect, from 1 on
    trial_end: float = 0  # output tokens at which a suspect is cleared

    num_prompt_tokens: int = field(init=False)
    num_resumed_tokens: int = field(init=False)
    stop_token_ids: frozenset[int] = field(init=False)
    prompt_logprobs: list[TokenLogprobs | None] | None = field(init=False)

    status: RequestStatus = field(init=False, default=RequestStatus.WAITING)
    num_computed_tokens: int = field(init=False, default=0)
    num_tokens_under_way: int = field(init=False, default=0)  # computed by steps whose results are not in yet
    num_awaited_tokens: int = field(init=False, default=0)  # output tokens that those steps draw
    num_cached_tokens: int | None = field(init=False, default=None)  # prompt tokens found at the first admission
    num_counted_prompt_tokens: int = field(init=False)  # so that a recomputed prompt is not counted twice
    num_preemptions: int = field(init=False, default=0)
    has_output: bool = field(init=False, default=False)
    finish_reason: str | None = field(init=False, default=None)
    stop_reason: int | None = field(init=False, default=None)
    ends_in_text: bool = field(init=False, default=False)  # the last token is no stop token
    grammar: GrammarState | None = field(init=False, default=None)  # None while it is being compiled
    speculation: RequestSpeculation | None = field(init=False, default=None)  # None until it first decodes

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.num_resumed_tokens = len(self.output_token_ids)
        self.num_counted_prompt_tokens = self.num_prompt_tokens if self.is_resumed else 0
        self.stop_token_ids = frozenset(self.sampling.stop_token_ids)
        # Prompt logprobs came with the first output token, so whoever resumes has them already.
        wants_prompt_logprobs = self.sampling.prompt_logprobs is not None and not self.is_resumed
        self.prompt_logprobs = [None] if wants_prompt_logprobs else None

    @classmethod
    def from_message(cls, message: GenerateRequest, *, now_s: float) -> Request:
        """Take up a message that arrived at the engine at `now_s` (monotonic)."""
        arrival_time = message.arrival_time or now_s
        return cls(
            request_id=message.request_id,
            prompt_token_ids=message.prompt_token_ids,
            output_token_ids=list(message.resumed_token_ids),
            sampling=message.sampling,
            timeline=Timeline(arrived_s=min(arrival_time, now_s), queued_s=now_s),
            arrival_time=arrival_time,
            priority=message.priority,
            cache_salt=message.cache_salt,
            tenant=message.tenant,
            key=make_key(message.origin_id or message.request_id),
        )

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier engine produced its first tokens."""
        return self.num_resumed_tokens > 0

    @property
    def is_finished(self) -> bool:
        """Whether it got its finish_reason."""
        return self.finish_reason is not None

    @property
    def num_output_tokens(self) -> int:
        """Output tokens so far, resumed ones included."""
        return len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """All known tokens, prompt and output."""
        return self.num_prompt_tokens + len(self.output_token_ids)

    @property
    def num_tokens_ahead(self) -> int:
        """All tokens when the steps under way are done, unless they end it."""
        return self.num_tokens + self.num_awaited_tokens

    @property
    def num_computed_ahead(self) -> int:
        """Computed tokens when the steps under way are done."""
        return self.num_computed_tokens + self.num_tokens_under_way

    @property
    def num_left_ahead(self) -> int:
        """Tokens that are then still to be computed; 1 where it decodes."""
        return self.num_tokens_ahead - self.num_computed_ahead

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether prompt logprobs are still to be computed and delivered."""
        return self.prompt_logprobs is not None

    @property
    def awaits_grammar(self) -> bool:
        """Whether it cannot run yet because its grammar is being compiled."""
        return self.sampling.grammar is not None and self.grammar is None

    @property
    def order(self) -> tuple[int, float, int]:
        """Sort key of the priority policy: smaller runs earlier and is preempted later."""
        return self.priority, self.arrival_time, self.arrival_index

    def token_ids_between(self, start: int, end: int) -> list[int]:
        """Known tokens ``[start, end)``."""
        split = self.num_prompt_tokens
        if end <= split:
            return self.prompt_token_ids[start:end]
        if start >= split:
            return self.output_token_ids[start - split : end - split]
        return self.prompt_token_ids[start:] + self.output_token_ids[: end - split]

    def preempt(self) -> None:
        """Forget what was computed; tokens and what was delivered stay."""
        self.status = RequestStatus.PREEMPTED
        self.num_computed_tokens = 0
        self.num_preemptions += 1
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = [None]

    def finish(self, finish_reason: str, stop_reason: int | None = None) -> None:
        """Mark the end."""
        self.status = RequestStatus.FINISHED
        self.finish_reason = finish_reason
        self.stop_reason = stop_reason
