"""The truth: rows one by one, as `engine.sampling` treats them."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from engine.kernels.sample.rows import Drafts, DrawRows, SeenTokens
from engine.sampling.noise import gumbel_of_keys
from engine.sampling.truncation import keep


def draw_tokens(logits: Tensor, rows: DrawRows) -> Tensor:
    """A token of each row of processed logits[R, V] (float32), int64 [R].

    The largest logit where the temperature is 0; else the largest ``logit / temperature + noise`` of what top_k, top_p
    and min_p leave. The lowest id among equals.
    """
    picked = []
    for index, row in enumerate(logits):
        temperature = float(rows.temperature[index])
        scaled = row / temperature if temperature else row
        if not temperature or not torch.isfinite(scaled.max()):
            picked.append(int(scaled.argmax()))
            continue
        ids = keep(scaled, int(rows.top_k[index]), float(rows.top_p[index]), float(rows.log_min_p[index]))
        key, key2 = rows.keys[index].tolist()
        scores = scaled[ids].double() + gumbel_of_keys(key, key2, ids)
        picked.append(int(ids[scores.argmax()]))
    return torch.tensor(picked, dtype=torch.int64, device=logits.device)


def apply_penalties_(logits: Tensor, seen: SeenTokens) -> None:
    """On logits[R, V] (float32) in place: repetition over all seen tokens, then frequency and presence over outputs."""
    for row, (start, end) in enumerate(pairwise(seen.starts.tolist())):
        ids, counts = seen.ids[start:end].long(), seen.counts[start:end]
        values = logits[row, ids]
        values = torch.where(values > 0, values / seen.repetition[row], values * seen.repetition[row])
        cost = counts.float() * seen.frequency[row] + seen.presence[row]
        logits[row, ids] = torch.where(counts > 0, values - cost, values)


def verify_greedy(targets: Tensor, drafts: Drafts) -> tuple[Tensor, Tensor]:
    """Drafted tokens against the model's own: how many hold, and what each row yields.

    targets int64 [n + R]: the likeliest token after the row's last token, then after each of its drafts, row by row.
    Returns int32 [R], tokens that the row yields (the drafts that hold, and the model's own after them), and the tokens
    as int64 [R, longest + 1], zeros behind them.
    """
    starts = drafts.starts.tolist()
    counts = torch.zeros(len(starts) - 1, dtype=torch.int32, device=targets.device)
    tokens = torch.zeros(len(starts) - 1, drafts.longest + 1, dtype=torch.int64, device=targets.device)
    for row, (start, end) in enumerate(pairwise(starts)):
        own = targets[start + row : end + row + 1].tolist()
        matches = [draft == target for draft, target in zip(drafts.ids[start:end].tolist(), own, strict=False)]
        count = (matches.index(False) if False in matches else len(matches)) + 1
        counts[row] = count
        tokens[row, :count] = torch.tensor(own[:count])
    return counts, tokens
