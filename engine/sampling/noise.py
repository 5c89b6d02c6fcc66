"""The noise of sampling: Gumbel values that are a function of (seed, output position, token id) and of nothing else.

A counter-based 32-bit hash with murmur3's finaliser; every implementation (torch, C++, Triton) makes the same bits.
The uniform value ``u = ((h >> 8) + 0.5) / 2**24`` and its logarithms are float64: the top values need 25 bits, and in
float32 they would round to 1, whose Gumbel value is infinite.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
MAX_GUMBEL = -math.log(-math.log1p(-(2.0**-25)))  # of the largest u; about 17.33
# The smallest u is 2**-25, whose value is about -2.85: noise lies in a bounded interval.


def row_keys(seed: int, position: int) -> tuple[int, int]:
    """The two 32-bit keys of one draw: `seed` is signed 64 bit, `position` counts output tokens from 0."""
    key = _mix_int(((_mix_seed(seed) + position) & MASK) ^ 0x7F4A7C15)
    return key, _mix_int(key ^ 0x165667B1)


def gumbel(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """Noise of token_ids[n] (int64) as float64 [n]."""
    return gumbel_of_keys(*row_keys(seed, position), token_ids)


def gumbel_of_keys(key: int, key2: int, token_ids: Tensor) -> Tensor:
    """The same from a draw's two keys."""
    hashed = _mix(_mix((token_ids * 0x9E3779B9 + key) & MASK) ^ key2)
    uniform = ((hashed >> 8).double() + 0.5) * 2.0**-24
    return -torch.log(-torch.log(uniform))


@lru_cache(maxsize=4096)  # the seeds of the requests that are being drawn for
def _mix_seed(seed: int) -> int:
    low, high = seed & MASK, (seed >> 32) & MASK
    return _mix_int(_mix_int(low ^ 0x9E3779B9) ^ high)


def _mix_int(h: int) -> int:
    h ^= h >> 16
    h = h * 0x85EBCA6B & MASK
    h ^= h >> 13
    h = h * 0xC2B2AE35 & MASK
    return h ^ h >> 16


def _mix(h: Tensor) -> Tensor:
    # Products wrap modulo 2**64, which leaves the low 32 bits right.
    h = h ^ (h >> 16)
    h = h.mul_(0x85EBCA6B).bitwise_and_(MASK)
    h = h.bitwise_xor_(h >> 13)
    h = h.mul_(0xC2B2AE35).bitwise_and_(MASK)
    return h.bitwise_xor_(h >> 16)
