"""Blocks: handed out, shared, found again, evicted, never twice."""

from __future__ import annotations

import pytest

from engine.cache.block_hash import BlockHasher
from engine.cache.block_pool import BlockPool


def idle_pool(num_blocks: int, num_idle: int) -> BlockPool:
    """A pool whose blocks 0 … num_idle - 1 were used as one table, registered as b"0", b"1" …, and released."""
    pool = BlockPool(num_blocks)
    block_ids = pool.allocate(num_idle)
    for block_id in block_ids:
        pool.register(block_id, b"%d" % block_id)
    pool.release(block_ids)
    return pool


def test_a_new_pool_hands_out_each_block_once():
    pool = BlockPool(5)
    assert sorted(pool.allocate(2) + pool.allocate(3)) == [0, 1, 2, 3, 4]
    assert pool.num_free == 0
    assert pool.num_used == 5


def test_released_blocks_can_be_handed_out_again():
    pool = BlockPool(3)
    pool.release(pool.allocate(3))
    assert pool.num_free == 3
    assert sorted(pool.allocate(3)) == [0, 1, 2]


def test_releasing_a_block_twice_is_noticed():
    pool = BlockPool(2)
    block_ids = pool.allocate(1)
    pool.release(block_ids)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.release(block_ids)


def test_a_registered_block_is_found_in_use_and_idle():
    pool = BlockPool(2)
    (block_id,) = pool.allocate(1)
    assert pool.find(b"h") is None
    pool.register(block_id, b"h")
    assert pool.find(b"h") == block_id
    pool.release([block_id])
    assert pool.find(b"h") == block_id
    assert pool.is_idle(block_id)
    assert pool.num_free == 2


def test_an_acquired_block_is_not_free():
    pool = idle_pool(2, 1)
    pool.acquire([0])
    assert pool.num_free == 1
    assert pool.allocate(1) == [1]
    assert pool.find(b"0") == 0


def test_a_shared_block_is_free_when_its_last_user_releases_it():
    pool = idle_pool(1, 1)
    pool.acquire([0])
    pool.acquire([0])
    pool.release([0])
    assert pool.num_free == 0
    pool.release([0])
    assert pool.num_free == 1


def test_blank_blocks_go_before_cached_ones():
    pool = idle_pool(4, 2)
    assert set(pool.allocate(2)) == {2, 3}
    assert pool.num_cached == 2


def test_the_tail_of_a_released_table_is_evicted_first():
    pool = idle_pool(3, 3)
    assert pool.allocate(1) == [2]
    assert pool.find(b"2") is None
    assert pool.allocate(1) == [1]
    assert pool.find(b"0") == 0


def test_the_least_recently_used_table_is_evicted_first():
    pool = BlockPool(2)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.register(first[0], b"first")
    pool.register(second[0], b"second")
    pool.release(second)
    pool.release(first)
    assert pool.allocate(1) == second
    assert pool.find(b"first") == first[0]


def test_using_an_idle_block_makes_it_recent():
    pool = BlockPool(2)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.register(first[0], b"first")
    pool.register(second[0], b"second")
    pool.release(first)
    pool.release(second)
    pool.acquire(first)
    pool.release(first)
    assert pool.allocate(1) == second


def test_a_twin_in_use_stays_the_one_that_is_found():
    pool = BlockPool(2)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.register(first[0], b"h")
    pool.register(second[0], b"h")
    assert pool.find(b"h") == first[0]
    pool.release(second)
    assert not pool.is_idle(second[0])
    assert pool.num_cached == 1


def test_an_idle_twin_gives_way_to_the_fresh_one():
    pool = idle_pool(2, 1)
    (fresh,) = pool.allocate(1)
    pool.register(fresh, b"0")
    assert pool.find(b"0") == fresh
    assert not pool.is_idle(0)
    assert pool.num_free == 1
    assert pool.allocate(1) == [0]


def test_registering_a_block_again_changes_nothing():
    pool = BlockPool(1)
    (block_id,) = pool.allocate(1)
    pool.register(block_id, b"h")
    pool.register(block_id, b"h")
    assert pool.find(b"h") == block_id


def test_reset_forgets_all_cached_blocks():
    pool = idle_pool(3, 2)
    assert pool.reset()
    assert pool.num_cached == 0
    assert pool.find(b"0") is None
    assert sorted(pool.allocate(3)) == [0, 1, 2]


def test_reset_is_refused_while_a_block_is_in_use():
    pool = idle_pool(3, 2)
    pool.acquire([0])
    assert not pool.reset()
    assert pool.find(b"1") == 1


def test_a_hash_covers_tokens_parent_salt_and_key():
    hasher = BlockHasher(b"key")
    root = hasher.root(None)
    block = hasher.block(root, [1, 2])
    assert block == BlockHasher(b"key").block(root, [1, 2])
    different = {
        block,
        hasher.block(root, [2, 1]),
        hasher.block(block, [1, 2]),
        hasher.block(hasher.root("salt"), [1, 2]),
        hasher.block(hasher.root(""), [1, 2]),
        BlockHasher(b"other").block(root, [1, 2]),
    }
    assert len(different) == 6


def test_each_process_has_its_own_key():
    assert BlockHasher().root(None) != BlockHasher().root(None)
