"""How much of a GPU the KV cache may take: what weights and the biggest step leave of the configured share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError

logger = logging.getLogger(__name__)

GIB = 1 << 30
RESERVE = 256 << 20  # what graphs and libraries take after the measurement


class DeviceMemory(Protocol):
    """One device's memory, in bytes."""

    def total(self) -> int:
        """All of it."""

    def used(self) -> int:
        """What anybody holds now, unused parts of torch's pool not counted."""

    def peak_of(self, run: Callable[[], object]) -> int:
        """What `run` held at most beyond what was held before."""


class CudaMemory:
    """`DeviceMemory` of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total(self) -> int:
        """All of it."""
        return int(torch.cuda.mem_get_info(self._device)[1])

    def used(self) -> int:
        """What anybody holds now."""
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return int(total - free)

    def peak_of(self, run: Callable[[], object]) -> int:
        """What `run` held at most beyond what was held before."""
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device) - before)


def kv_cache_bytes(config: EngineConfig, memory: DeviceMemory, run_biggest_step: Callable[[], object]) -> int:
    """Bytes that are left for KV blocks. ConfigError where nothing is."""
    share = int(memory.total() * config.gpu_memory_utilization)
    step = memory.peak_of(run_biggest_step)
    used = memory.used()
    left = share - used - step - RESERVE
    facts = f"weights and others {used / GIB:.2f} GiB, the biggest step {step / GIB:.2f} GiB"
    logger.info("gpu memory measured total=%d used=%d step=%d left=%d", memory.total(), used, step, left)
    if left <= 0:
        needed = (used + step + RESERVE) / memory.total()
        raise ConfigError(
            f"no GPU memory is left for the KV cache: {facts} of {share / GIB:.2f} GiB: set gpu_memory_utilization "
            f"above {needed:.2f}, or max_num_batched_tokens below {config.max_num_batched_tokens}"
        )
    return left


@contextmanager
def out_of_memory_while_loading(config: EngineConfig) -> Iterator[None]:
    """Turns torch's out-of-memory error into one that names the number to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"out of GPU memory while loading ({_first_line(error)}): set max_num_batched_tokens below "
            f"{config.max_num_batched_tokens}, gpu_memory_utilization below {config.gpu_memory_utilization}, "
            "or serve a smaller or quantized model"
        ) from None


@contextmanager
def out_of_memory_while_serving(utilization: float) -> Iterator[None]:
    """The same for a step: the KV cache left too little beside it."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EngineError(
            f"out of GPU memory in a step ({_first_line(error)}): set gpu_memory_utilization below {utilization}"
        ) from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
