"""All KV blocks: hands them out, counts their users, finds full ones again by hash, evicts the least recently used.

Every operation is O(1) a block. A block is *in use* (referenced by tables), or *idle* (findable, nobody's: kept until
its memory is needed) or *blank* (nothing worth keeping; handed out first).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from engine.cache.block import Block


class BlockPool:
    """`num_blocks` blocks with the ids 0 … num_blocks - 1."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._by_hash: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, idle ones included."""
        return len(self._blank) + len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks that some table references."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by their hash."""
        return len(self._by_hash)

    def is_idle(self, block_id: int) -> bool:
        """Whether nobody uses this findable block."""
        return block_id in self._idle

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds what was hashed, in use or idle."""
        return self._by_hash.get(block_hash)

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` blocks with one user each; the caller has looked at `num_free`."""
        return [self._take() for _ in range(count)]

    def acquire(self, block_ids: Iterable[int]) -> None:
        """Add a user to found blocks."""
        for block_id in block_ids:
            block = self.blocks[block_id]
            if block.ref_count == 0:
                del self._idle[block_id]
            block.ref_count += 1

    def release(self, block_ids: list[int]) -> None:
        """Take a user from the blocks of a table, in table order: the tail becomes idle first and is evicted first."""
        for block_id in reversed(block_ids):
            block = self.blocks[block_id]
            assert block.ref_count > 0, f"block {block_id} freed twice"
            block.ref_count -= 1
            if block.ref_count == 0:
                self._set_free(block)

    def register(self, block_id: int, block_hash: bytes) -> None:
        """Make a full block findable, unless a twin in use is findable already. An idle twin gives way to it."""
        twin_id = self._by_hash.get(block_hash)
        if twin_id == block_id or (twin_id is not None and self.blocks[twin_id].ref_count > 0):
            return
        if twin_id is not None:
            del self._idle[twin_id]
            self._forget(self.blocks[twin_id])
            self._blank.append(twin_id)
        self.blocks[block_id].block_hash = block_hash
        self._by_hash[block_hash] = block_id

    def reset(self) -> bool:
        """Forget every cached block; refused (False) while a block is in use."""
        if self.num_used:
            return False
        for block_id in self._idle:
            self._forget(self.blocks[block_id])
        self._blank.extend(self._idle)
        self._idle.clear()
        return True

    def _take(self) -> int:
        block_id = self._blank.pop() if self._blank else self._evict()
        self.blocks[block_id].ref_count = 1
        return block_id

    def _evict(self) -> int:
        block_id, _ = self._idle.popitem(last=False)
        self._forget(self.blocks[block_id])
        return block_id

    def _set_free(self, block: Block) -> None:
        if block.block_hash is None:
            self._blank.append(block.block_id)
        else:
            self._idle[block.block_id] = None

    def _forget(self, block: Block) -> None:
        assert block.block_hash is not None
        del self._by_hash[block.block_hash]
        block.block_hash = None
