"""Weights that a CPU streams once a token lie in huge pages: over a file's small ones it reads a third slower."""

from __future__ import annotations

import logging

from engine.kernels.native.packing import has_huge_pages, map_memory
from engine.models.loader import MappedWeights
from engine.runner.kv_cache import free_memory_bytes

logger = logging.getLogger(__name__)

SHARE = 2  # at most half of the free memory, so that a file that only just fits is still served as it is mapped
SPARE = 4  # a quarter of it stays free beside the KV cache: mapped weights can be dropped and read again, these cannot


def read_into_huge_pages(weights: MappedWeights, kv_cache_bytes: int) -> None:
    """Have packed weights read into memory where that makes them faster and there is room, else leave them mapped."""
    if not weights.is_packed or not has_huge_pages():
        return
    free = free_memory_bytes()
    if weights.nbytes > min(free // SHARE, free - free // SPARE - kv_cache_bytes):
        logger.info("weights stay mapped, memory is short bytes=%d free=%d", weights.nbytes, free)
        return
    try:
        memory = map_memory(weights.nbytes)
    except OSError as error:  # a limit of this process, or a machine that promises no more than it has
        logger.info("weights stay mapped, memory is refused bytes=%d error=%s", weights.nbytes, error)
        return
    weights.read_into(memory)
