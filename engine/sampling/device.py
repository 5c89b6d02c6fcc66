"""The sampler over the sampling ops (GPU, C++ library): a batch's penalties and picks are a call each.

Masks, grammars and logprobs are rare and stay as they are, row by row (`engine.sampling.sampler`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.kernels import load_op
from engine.kernels.sample.rows import DrawRows, SeenTokens
from engine.sampling.grammar import apply_token_mask_
from engine.sampling.masks import apply_masks_, has_masks
from engine.sampling.native_draws import NativeDraws
from engine.sampling.noise import row_keys
from engine.sampling.penalties import has_penalties
from engine.sampling.sampler import Sampler, draw_temperature, is_untouched
from engine.sampling.truncation import log_min_p, truncates
from engine.step import StepRow


class DeviceSampler(Sampler):
    """`Sampler` over the sampling ops of an implementation; same tokens."""

    def __init__(self, eos_token_ids: frozenset[int], implementation: str) -> None:
        super().__init__(eos_token_ids)
        self._draw: Callable[[Tensor, DrawRows], Tensor] = load_op("draw_tokens", implementation)
        self._penalise_: Callable[[Tensor, SeenTokens], None] = load_op("apply_penalties_", implementation)
        self._native = NativeDraws() if implementation == "cpu" else None

    def pick(self, logits: Tensor, rows: list[StepRow]) -> list[int]:
        """A token of each row of logits[n, V] (float32, overwritten)."""
        if not all(map(is_untouched, rows)):
            self._process_(logits, rows)
        if self._native is not None:
            return self._native.draw(logits, rows)
        token_ids: list[int] = self.draw(logits, rows).tolist()
        return token_ids

    def draw(self, logits: Tensor, rows: list[StepRow]) -> Tensor:
        """A token of each row of processed logits[n, V]: int64 [n], on their device, which is not waited for."""
        return self._draw(logits, make_draw_rows(rows, logits.device))

    def _process_(self, logits: Tensor, rows: list[StepRow]) -> None:
        raw = {i: logits[i].clone() for i, row in enumerate(rows) if row.token_mask is not None and has_masks(row)}
        for index, row in enumerate(rows):
            if has_masks(row):
                apply_masks_(logits[index], row, self._eos_token_ids)
        if any(has_penalties(row) for row in rows):
            self._penalise_(logits, make_seen_tokens(rows, logits.device))
        for index, row in enumerate(rows):
            if row.token_mask is not None:
                apply_token_mask_(logits[index], row.token_mask, raw.get(index))


def make_draw_rows(rows: list[StepRow], device: torch.device) -> DrawRows:
    """How each row picks its token, in one copy to the device."""
    count = len(rows)
    keys = np.array([row_keys(row.sampling.seed, row.num_output_tokens) for row in rows], dtype=np.int64)
    floats = np.array(
        [
            [draw_temperature(row) for row in rows],
            [row.sampling.top_p for row in rows],
            [log_min_p(row.sampling) for row in rows],
        ],
        dtype=np.float32,
    )
    top_k = np.array([max(row.sampling.top_k, 0) for row in rows], dtype=np.int32)
    packed = np.concatenate([keys.reshape(-1).view(np.uint8), floats.reshape(-1).view(np.uint8), top_k.view(np.uint8)])
    data = to_device(packed, device)
    on_device = data[16 * count : 28 * count].view(torch.float32).view(3, count)
    return DrawRows(
        temperature=on_device[0],
        top_k=data[28 * count :].view(torch.int32),
        top_p=on_device[1],
        log_min_p=on_device[2],
        keys=data[: 16 * count].view(torch.int64).view(count, 2),
        truncates=any(truncates(row.sampling) for row in rows),
    )


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A copy of the array; a GPU is not waited for."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def make_seen_tokens(rows: list[StepRow], device: torch.device) -> SeenTokens:
    """What each row that has penalties has seen; other rows have seen nothing, which costs nothing."""
    seen = [_seen(row) if has_penalties(row) else _NOTHING for row in rows]
    starts = np.cumsum([0, *(len(ids) for ids, _ in seen)], dtype=np.int64)
    factors = np.array(
        [
            [row.sampling.repetition_penalty for row in rows],
            [row.sampling.frequency_penalty for row in rows],
            [row.sampling.presence_penalty for row in rows],
        ],
        dtype=np.float32,
    )
    repetition, frequency, presence = torch.from_numpy(factors).to(device)
    return SeenTokens(
        starts=torch.from_numpy(starts.astype(np.int32)).to(device),
        ids=torch.from_numpy(np.concatenate([ids for ids, _ in seen])).to(device),
        counts=torch.from_numpy(np.concatenate([counts for _, counts in seen])).to(device),
        repetition=repetition,
        frequency=frequency,
        presence=presence,
    )


_Ints = npt.NDArray[np.int32]
_NOTHING: tuple[_Ints, _Ints] = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32))


def _seen(row: StepRow) -> tuple[_Ints, _Ints]:
    """Tokens of prompt and output, each once, and how often each is in the output."""
    prompt = np.array(row.prompt_token_ids, dtype=np.int32)
    ids, places = np.unique(np.concatenate([prompt, np.array(row.output_token_ids, np.int32)]), return_inverse=True)
    counts = np.bincount(places[len(prompt) :], minlength=len(ids))
    return ids.astype(np.int32), counts.astype(np.int32)
