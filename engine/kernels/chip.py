"""What a kernel's launch asks of the GPU that it runs on; an assumed one where there is none.

Tile sizes depend on the chip alone (shared memory, number of multiprocessors), never on what was launched before.
Without a GPU (interpreter, ahead-of-time compilation) the chip is the one that `assume_chip` named, else an H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class Chip:
    """One kind of GPU."""

    capability: int  # 10 * major + minor
    num_multiprocessors: int
    shared_bytes: int  # that one program may have

    @property
    def has_fp8(self) -> bool:
        """Whether it converts and multiplies e4m3."""
        return self.capability >= 89


CHIPS = {
    80: Chip(80, 108, 163 << 10),  # A100
    89: Chip(89, 142, 99 << 10),  # L40S
    90: Chip(90, 132, 227 << 10),  # H100, H200
    100: Chip(100, 148, 227 << 10),  # B200
}
_assumed: ContextVar[Chip] = ContextVar("assumed_chip", default=CHIPS[90])


def chip_of(device: torch.device) -> Chip:
    """The chip behind a device."""
    return _chip(device.index or 0) if device.type == "cuda" else _assumed.get()


@contextmanager
def assume_chip(chip: Chip) -> Iterator[None]:
    """Let what is not on a GPU behave as if on this one."""
    token = _assumed.set(chip)
    try:
        yield
    finally:
        _assumed.reset(token)


@cache
def _chip(index: int) -> Chip:
    found = torch.cuda.get_device_properties(index)
    capability = 10 * found.major + found.minor
    # Consumer chips of a generation have less shared memory than its data center chip: the unknown get the least.
    shared = CHIPS[capability].shared_bytes if capability in CHIPS else CHIPS[89].shared_bytes
    return Chip(capability, found.multi_processor_count, shared)
