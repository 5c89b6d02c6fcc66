"""Samples rows that have drafts: a draft token counts where it is exactly what is drawn at its place.

Each draw sees what it would see without drafts (its own position's noise, penalties and masks over the tokens before
it), so the tokens are the same. What follows a wrong token is never drawn.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from engine.sampling.sampler import Sampled, Sampler
from engine.step import StepRow


def sample_rows(sampler: Sampler, logits: Tensor, rows: list[StepRow]) -> list[list[Sampled]]:
    """Each row's right draft tokens and one more. logits[n, V] (overwritten) hold 1 + len(draft) rows for each."""
    if not any(row.draft_token_ids for row in rows):
        return [[one] for one in sampler.sample(logits, rows)]
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + 1 + len(row.draft_token_ids))
    found: list[list[Sampled]] = [[] for _ in rows]
    depth, going = 0, list(range(len(rows)))  # rows whose draft was right so far
    while going:
        wanted = torch.tensor([starts[index] + depth for index in going], device=logits.device)
        drawn = sampler.sample(logits[wanted], [_after(rows[index], depth) for index in going])
        for index, one in zip(going, drawn, strict=True):
            found[index].append(one)
        going = [index for index, one in zip(going, drawn, strict=True) if _is_right(rows[index], depth, one)]
        depth += 1
    return found


def take_likeliest(token_ids: list[int], rows: list[StepRow]) -> list[list[Sampled]]:
    """The same for rows that are all plain; token_ids[n] are the likeliest where logits would have a row each."""
    if len(token_ids) == len(rows):
        return [[Sampled(token_id, None)] for token_id in token_ids]
    found, start = [], 0
    for row in rows:
        own = token_ids[start : start + 1 + len(row.draft_token_ids)]
        count = 1
        while count < len(own) and own[count - 1] == row.draft_token_ids[count - 1]:
            count += 1
        found.append([Sampled(token_id, None) for token_id in own[:count]])
        start += len(own)
    return found


def _after(row: StepRow, depth: int) -> StepRow:
    """The row as if that much of its draft had been produced."""
    if depth == 0:
        return row
    return dataclasses.replace(row, output_token_ids=row.output_token_ids + row.draft_token_ids[:depth])


def _is_right(row: StepRow, depth: int, drawn: Sampled) -> bool:
    return depth < len(row.draft_token_ids) and drawn.token_id == row.draft_token_ids[depth]
