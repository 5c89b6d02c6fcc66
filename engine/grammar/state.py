"""Where one request stands in its grammar: takes its tokens, says which may come next and when it is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

TokenMask = NDArray[np.int32]


class GrammarState:
    """``stop_token_ids`` end the request where the grammar may end, and are content (or forbidden) elsewhere.

    With `starts_after` everything is allowed until these tokens were produced in a row; with `opens_with` only after
    that token, which is allowed as the first one.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        *,
        eos_token_ids: Collection[int],
        stop_token_ids: Collection[int] = (),
        starts_after: Sequence[int] = (),
        opens_with: int | None = None,
        param: str = "structured_outputs",
    ) -> None:
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._stop_token_ids = stop_token_ids
        self._starts_after = list(starts_after)
        self._opens_with = opens_with
        self._recent: list[int] = []
        self.param = param
        self.is_active = not self._starts_after or opens_with is not None
        self.may_stop = True
        self.ends_in_text = False

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be followed any further, None while it can."""
        return self._matcher.get_error() or "it is too complex" if self._matcher.is_error() else None

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow."""
        return self.is_active and self._matcher.is_stopped() and not self._matcher.is_error()

    def accept(self, token_id: int) -> None:
        """Take the token that was produced. ``may_stop`` then says whether it may end the request as a stop token."""
        opens_with, self._opens_with = self._opens_with, None
        if token_id == opens_with:
            self.is_active = False
        if not self.is_active:
            self._note(token_id)
            return
        self.may_stop = self._matcher.is_accepting()
        self.ends_in_text = not (self.may_stop and self._ends(token_id))
        # A stop token that is no EOS ends the request by itself: it is no part of what was asked for.
        if self.ends_in_text or token_id in self._eos_token_ids:
            self._matcher.consume_token(token_id)

    def accept_all(self, token_ids: Iterable[int]) -> None:
        """Take tokens that an earlier engine produced."""
        for token_id in token_ids:
            self.accept(token_id)

    def warm_up(self) -> None:
        """Compute a mask, so that the lexer's states exist before the busy loop needs them."""
        if not self._matcher.is_stopped():
            self._matcher.compute_bitmask()

    def finish_mask_(self, mask: TokenMask, *, is_stop_wanted: bool) -> None:
        """Settle the stop tokens in a mask that `matcher` filled: where the grammar may end they are allowed, unless
        no stop is wanted yet (min_tokens, ignore_eos) and there is something else to say.
        """
        if self._opens_with is not None:
            _set(mask, self._opens_with, True)
        if is_stop_wanted and not self._stop_token_ids:
            return
        before = mask.copy()
        may_end = self._matcher.is_accepting()
        for token_id in self._stop_token_ids:
            _set(mask, token_id, may_end and is_stop_wanted)
        if not is_stop_wanted:
            for token_id in self._eos_token_ids:
                _set(mask, token_id, False)
        if not mask.any():
            mask[:] = before

    @property
    def matcher(self) -> LLMatcher:
        """For masks, which are computed for several requests at once."""
        return self._matcher

    def _note(self, token_id: int) -> None:
        self._recent = [*self._recent, token_id][-len(self._starts_after) :]
        self.is_active = self._recent == self._starts_after

    def _ends(self, token_id: int) -> bool:
        return token_id in self._eos_token_ids or token_id in self._stop_token_ids


def _set(mask: TokenMask, token_id: int, is_allowed: bool) -> None:
    word, bit = divmod(token_id, 32)
    if word < len(mask):
        bits = mask[word : word + 1].view(np.uint32)
        bits[0] = bits[0] | np.uint32(1 << bit) if is_allowed else bits[0] & np.uint32(~(1 << bit) & 0xFFFFFFFF)
