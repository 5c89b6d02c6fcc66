"""Which blocks each request holds, and the prefix cache seen from a request.

The chain of a request's hashes outlives its blocks, so that each full block is hashed once, preempted or not. Whether
a request may have blocks at all, and who must give some back, is the scheduler's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.cache.block_hash import BlockHasher
from engine.cache.block_pool import BlockPool
from engine.request import Request


@dataclass(slots=True)
class BlockTable:
    """A request's blocks in order. ``hashes[i]`` is that of block i; blocks before ``num_registered`` are findable."""

    root: bytes
    block_ids: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    num_registered: int = 0


class BlockTables:
    """The tables of all requests over one pool."""

    def __init__(
        self, pool: BlockPool, block_size: int, *, enable_prefix_caching: bool, hasher: BlockHasher | None = None
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self._is_caching = enable_prefix_caching
        self._hasher = hasher or BlockHasher()
        self._tables: dict[str, BlockTable] = {}
        self._computing: dict[bytes, str] = {}  # hash of a block that is admitted but not yet full → request

    def add(self, request: Request) -> None:
        """Open an empty table."""
        self._tables[request.request_id] = BlockTable(
            self._hasher.root(request.cache_salt) if self._is_caching else b""
        )

    def remove(self, request: Request) -> None:
        """Give back the request's blocks and close its table."""
        self.release(request)
        del self._tables[request.request_id]

    def block_ids(self, request: Request) -> list[int]:
        """The request's blocks: the list itself, which grows in place."""
        return self._tables[request.request_id].block_ids

    def can_read_cache(self, request: Request) -> bool:
        """Whether the request may start from cached blocks: prompt logprobs need every position computed."""
        return self._is_caching and not request.wants_prompt_logprobs

    def find_prefix(self, request: Request) -> list[int]:
        """The cached blocks that the request's known tokens start with. The last token is always left to compute."""
        if not self.can_read_cache(request):
            return []
        block_ids: list[int] = []
        for block_hash in self._chain(request)[: self._max_hits(request)]:
            block_id = self.pool.find(block_hash)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def is_being_computed(self, request: Request, num_hits: int) -> bool:
        """Whether running requests are computing at least half of what the request lacks beyond its `num_hits` blocks.

        Chained hashes make one look enough: where the middle block is on its way, all before it are.
        """
        max_hits = self._max_hits(request)
        if num_hits >= max_hits or not self.can_read_cache(request):
            return False
        return self._chain(request)[(num_hits + max_hits) // 2] in self._computing

    def admit(self, request: Request, prefix: list[int]) -> bool:
        """Start the request's table with `prefix` and blocks for all its known tokens; False where they don't fit."""
        table = self._tables[request.request_id]
        num_new = self._num_blocks(request.num_tokens) - len(prefix)
        if num_new + sum(map(self.pool.is_idle, prefix)) > self.pool.num_free:
            return False
        self.pool.acquire(prefix)
        table.block_ids = prefix + self.pool.allocate(num_new)
        table.num_registered = len(prefix)
        if self._is_caching:
            for block_hash in self._chain(request)[len(prefix) :]:
                self._computing.setdefault(block_hash, request.request_id)
        return True

    def grow(self, request: Request, num_tokens: int) -> bool:
        """See that the table covers `num_tokens`; False where the pool has too few blocks left."""
        block_ids = self._tables[request.request_id].block_ids
        if num_tokens <= len(block_ids) * self.block_size:
            return True
        num_new = self._num_blocks(num_tokens) - len(block_ids)
        if num_new > self.pool.num_free:
            return False
        block_ids.extend(self.pool.allocate(num_new))
        return True

    def num_slots(self, request: Request) -> int:
        """Tokens that the request's blocks have room for."""
        return len(self._tables[request.request_id].block_ids) * self.block_size

    def trim(self, request: Request) -> None:
        """Give back the blocks past the request's known tokens."""
        block_ids = self._tables[request.request_id].block_ids
        num_needed = self._num_blocks(request.num_tokens)
        self.pool.release(block_ids[num_needed:])
        del block_ids[num_needed:]

    def register_computed(self, request: Request) -> None:
        """Make findable the blocks that became full; called after the step that computed them."""
        table = self._tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        if num_full <= table.num_registered or not self._is_caching:
            return
        hashes = self._chain(request)
        for index in range(table.num_registered, num_full):
            self.pool.register(table.block_ids[index], hashes[index])
            self._disclaim(hashes[index], request)
        table.num_registered = num_full

    def release(self, request: Request) -> None:
        """Give back the request's blocks; those that are findable stay so until their memory is needed."""
        table = self._tables[request.request_id]
        for block_hash in table.hashes[table.num_registered :]:
            self._disclaim(block_hash, request)
        self.pool.release(table.block_ids)
        table.block_ids = []
        table.num_registered = 0

    def _chain(self, request: Request) -> list[bytes]:
        table, size = self._tables[request.request_id], self.block_size
        for index in range(len(table.hashes), request.num_tokens // size):
            parent = table.hashes[-1] if table.hashes else table.root
            token_ids = request.token_ids_between(index * size, (index + 1) * size)
            table.hashes.append(self._hasher.block(parent, token_ids))
        return table.hashes

    def _disclaim(self, block_hash: bytes, request: Request) -> None:
        if self._computing.get(block_hash) == request.request_id:
            del self._computing[block_hash]

    def _max_hits(self, request: Request) -> int:
        return (request.num_tokens - 1) // self.block_size

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
