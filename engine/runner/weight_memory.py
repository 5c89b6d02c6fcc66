"""Weights that a CPU streams once a token lie in huge pages: over a file's small ones it reads a third slower."""

from __future__ import annotations

import logging

from engine.kernels.native.packing import has_huge_pages, map_memory
from engine.models.loader import MappedWeights
from engine.runner.kv_cache import free_memory_bytes

logger = logging.getLogger(__name__)

SHARE = 2  # at most half of the free memory, so that a file that only just fits is still served as it is mapped


def read_into_huge_pages(weights: MappedWeights) -> None:
    """Have packed weights read into memory where that makes them faster and there is room, else leave them mapped."""
    if not weights.is_packed or not has_huge_pages():
        return
    free = free_memory_bytes()
    if weights.nbytes > free // SHARE:
        logger.info("weights stay mapped, memory is short bytes=%d free=%d", weights.nbytes, free)
        return
    weights.read_into(map_memory(weights.nbytes))
