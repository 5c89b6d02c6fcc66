"""Puts a grammar's mask on logits: the last step before a token is picked, so that nothing can undo it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NEVER = float("-inf")


def apply_token_mask_(logits: Tensor, token_mask: NDArray[np.int32], raw: Tensor | None = None) -> None:
    """On processed logits[V] in place. Where other rules banned all that the grammar allows, `raw` logits count."""
    banned = ~_unpack(token_mask, logits.shape[0]).to(logits.device)
    logits.masked_fill_(banned, NEVER)
    if raw is not None and logits.max() == NEVER:
        logits.copy_(raw)
        logits.masked_fill_(banned, NEVER)


def _unpack(token_mask: NDArray[np.int32], vocab_size: int) -> Tensor:
    """Bits, the lowest first → bool [V]; tokens past the mask's end are not allowed."""
    bits = np.unpackbits(token_mask.view(np.uint8), bitorder="little")
    allowed = np.zeros(vocab_size, dtype=np.uint8)
    allowed[: len(bits)] = bits[:vocab_size]
    return torch.from_numpy(allowed).bool()
