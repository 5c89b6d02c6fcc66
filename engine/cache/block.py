"""One KV block as the host sees it: who uses it and what it is findable as."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Block:
    """In use while ``ref_count > 0``. With a hash it is full and findable, in use or idle; without one it is not."""

    block_id: int
    ref_count: int = 0
    block_hash: bytes | None = None
