"""Draws up drafts and decides how long they may be: as long as the last token is likelier right than it costs.

Drafts that would not pay are not computed, but still compared with what the request produces next. That costs nothing
and tells when they would pay again, so nothing has to be tried out.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import SpeculationConfig
from engine.request import Request
from engine.speculation.acceptance import Acceptance
from engine.speculation.ngram import Match, NgramIndex

MAX_INDEXED = 4096  # tokens of a request that one step takes into its index, about 2 ms


@dataclass(slots=True)
class _Shadow:
    """A draft that is not computed, and how many of its tokens have come true."""

    match: Match
    num_right: int = 0


class RequestSpeculation:
    """One request's index, acceptance and the draft in question."""

    def __init__(self, config: SpeculationConfig, shared: Acceptance) -> None:
        self.acceptance = Acceptance(shared)
        self.index = NgramIndex(config.prompt_lookup_min, config.prompt_lookup_max)
        self.match_length = 0  # of the draft that is being computed
        self._shadow: _Shadow | None = None

    def catch_up(self, request: Request) -> bool:
        """Take in the tokens that are new; False where there are still more."""
        start = len(self.index)
        end = min(request.num_tokens, start + MAX_INDEXED)
        token_ids = request.token_ids_between(start, end)
        self.index.extend(token_ids)
        self._compare(token_ids)
        return end == request.num_tokens

    def watch(self, match: Match) -> None:
        """See what becomes of a draft that is not computed, unless another is being watched."""
        self._shadow = self._shadow or _Shadow(match)

    def stop_watching(self) -> None:
        """A draft will be computed. What was right so far counts."""
        if self._shadow is not None and self._shadow.num_right:
            self.acceptance.record(self._shadow.match.length, self._shadow.num_right, was_wrong=False)
        self._shadow = None

    def _compare(self, token_ids: list[int]) -> None:
        for token_id in token_ids:
            shadow = self._shadow
            if shadow is None:
                return
            is_right = token_id == shadow.match.token_ids[shadow.num_right]
            shadow.num_right += is_right
            if not is_right or shadow.num_right == len(shadow.match.token_ids):
                self.acceptance.record(shadow.match.length, shadow.num_right, was_wrong=not is_right)
                self._shadow = None


class Speculator:
    """Drafts of all requests."""

    def __init__(self, config: SpeculationConfig) -> None:
        self._config = config
        self._shared = Acceptance()

    def propose(self, request: Request, max_tokens: int, relative_cost: float) -> list[int]:
        """What the request's next tokens may be, at most `max_tokens` and no more than pays; [] for no idea.

        `relative_cost` is that of one more token in the step that the draft would be part of: what its chance is
        to be weighed against.
        """
        state = request.speculation
        if state is None:
            state = request.speculation = RequestSpeculation(self._config, self._shared)
        if not state.catch_up(request):
            return []
        match = state.index.find(self._config.num_speculative_tokens)
        if match is None:
            return []
        count = min(max_tokens, self._paying_length(state, match, relative_cost))
        if count <= 0:
            state.watch(match)
            return []
        state.stop_watching()
        state.match_length = match.length
        return match.token_ids[:count]

    def record(self, request: Request, num_draft_tokens: int, num_accepted: int) -> None:
        """How the draft fared that was computed."""
        state = request.speculation
        if state is not None:
            state.acceptance.record(state.match_length, num_accepted, was_wrong=num_accepted < num_draft_tokens)

    def _paying_length(self, state: RequestSpeculation, match: Match, relative_cost: float) -> int:
        if not self._config.adaptive:
            return len(match.token_ids)
        chance = state.acceptance.chance(match.length)
        count, is_right = 0, chance
        while count < len(match.token_ids) and is_right > relative_cost:
            count += 1
            is_right *= chance
        return count
