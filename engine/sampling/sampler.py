"""One token for each row that samples, in the order: raw logprobs, masks and bias, penalties, then greedy or a draw.

A draw is the Gumbel trick: the token with the largest processed logit / temperature + noise. Greedy rows are one
argmax over the batch; rows that draw are treated one by one, as vectors of the vocabulary's length.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.messages import TokenLogprobs
from engine.sampling.grammar import apply_token_mask_
from engine.sampling.logprobs import make_token_logprobs
from engine.sampling.masks import apply_masks_, has_masks
from engine.sampling.noise import MAX_GUMBEL, gumbel
from engine.sampling.penalties import apply_penalties_, has_penalties
from engine.sampling.truncation import kept_ids, truncates
from engine.step import StepRow

MIN_TEMPERATURE = 1e-5  # below it a division overflows and the draw is the argmax anyway
ROUNDING = 1e-2  # slack of a bound compared in float32
NEAR = 4.0  # a first guess at the winner comes from tokens this close to the likeliest


class Sampled(NamedTuple):
    """One row's token, with logprobs where the request asks for them."""

    token_id: int
    logprobs: TokenLogprobs | None


class Sampler:
    """Knows the model's EOS ids, which min_tokens masks; holds no state of requests."""

    def __init__(self, eos_token_ids: frozenset[int]) -> None:
        self._eos_token_ids = eos_token_ids

    def sample(self, logits: Tensor, rows: list[StepRow]) -> list[Sampled]:
        """Sample from logits[n, V] (float32, overwritten) for the n rows."""
        raw = {index: logits[index].clone() for index, row in enumerate(rows) if _wants_logprobs(row)}
        token_ids = self.pick(logits, rows)
        return [
            Sampled(token_id, _logprobs(raw.get(index), token_id, rows[index]))
            for index, token_id in enumerate(token_ids)
        ]

    def pick(self, logits: Tensor, rows: list[StepRow]) -> list[int]:
        """A token of each row of logits[n, V] (float32, overwritten)."""
        for index, row in enumerate(rows):
            self.process_(logits[index], row)
        token_ids = self._greedy(logits, rows)
        for index, row in enumerate(rows):
            if not _is_greedy(row):
                token_ids[index] = draw(logits[index], row)
        return token_ids

    def process_(self, logits: Tensor, row: StepRow) -> None:
        """Masks, bias and penalties on one row's logits[V], then what its grammar allows; in place."""
        raw = logits.clone() if row.token_mask is not None and has_masks(row) else None
        if has_masks(row):
            apply_masks_(logits, row, self._eos_token_ids)
        if has_penalties(row):
            apply_penalties_(logits, row)
        if row.token_mask is not None:
            apply_token_mask_(logits, row.token_mask, raw)

    def _greedy(self, logits: Tensor, rows: list[StepRow]) -> list[int]:
        if not any(_is_greedy(row) for row in rows):
            return [0] * len(rows)
        token_ids: list[int] = logits.argmax(dim=-1).tolist()
        return token_ids


def draw(logits: Tensor, row: StepRow) -> int:
    """Draw from processed logits[V] at the row's output position."""
    sampling = row.sampling
    position = len(row.output_token_ids)
    scaled = logits / sampling.temperature
    if not torch.isfinite(scaled.max()):
        return int(
            scaled.argmax()
        )  # an overflow in half precision costs this request its sense, not the engine its life
    ids = kept_ids(scaled, sampling) if truncates(sampling) else _contenders(scaled, sampling.seed, position)
    scores = scaled[ids].double() + gumbel(sampling.seed, position, ids)
    return int(ids[scores.argmax()])


def _contenders(scaled: Tensor, seed: int, position: int) -> Tensor:
    """Ids that can win: noise is bounded, so most of a vocabulary is out before any noise is made for it."""
    near = (scaled >= scaled.max() - NEAR).nonzero().flatten()
    best = (scaled[near].double() + gumbel(seed, position, near)).max()
    return (scaled >= float(best) - MAX_GUMBEL - ROUNDING).nonzero().flatten()


def is_plain(row: StepRow) -> bool:
    """Whether the row's token is the one with the largest logit, and nothing else is asked for."""
    return _is_greedy(row) and is_bare(row)


def is_bare(row: StepRow) -> bool:
    """Whether the row's token is drawn from the logits as they are, and nothing else is asked for."""
    return not _wants_logprobs(row) and is_untouched(row)


def is_untouched(row: StepRow) -> bool:
    """Whether the row's logits are left as they are before a token is picked."""
    return row.token_mask is None and not has_masks(row) and not has_penalties(row)


def draw_temperature(row: StepRow) -> float:
    """The row's temperature; 0 where its token is the likeliest."""
    return 0.0 if _is_greedy(row) else row.sampling.temperature


def _is_greedy(row: StepRow) -> bool:
    return row.sampling.temperature < MIN_TEMPERATURE


def _wants_logprobs(row: StepRow) -> bool:
    return row.sampling.logprobs is not None or bool(row.sampling.logprob_token_ids)


def _logprobs(raw: Tensor | None, token_id: int, row: StepRow) -> TokenLogprobs | None:
    if raw is None:
        return None
    return make_token_logprobs(raw, token_id, row.sampling.logprobs or 0, row.sampling.logprob_token_ids)
