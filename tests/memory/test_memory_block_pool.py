"""The block pool by itself: states, refusals that change nothing, contents, growth, and that the check can go red."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctx_engine.memory import BlockPool, IntegrityError, OutOfBlocks


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.num_free_blocks, pool.num_cached_blocks, pool.num_used_blocks


def test_every_block_is_free_cached_or_in_use() -> None:
    pool = BlockPool(10)
    table = pool.allocate(4)
    assert counts(pool) == (6, 0, 4)
    pool.cache(table[:3], [b"a", b"b", b"c"])
    assert counts(pool) == (6, 0, 4)
    pool.free(table)
    assert counts(pool) == (7, 3, 0)
    pool.touch([table[1]])
    assert counts(pool) == (7, 2, 1)
    assert pool.usage == 0.1
    pool.check([[table[1]]])


def test_counters() -> None:
    pool = BlockPool(4)
    table = pool.allocate(4)
    pool.cache(table, [b"a", b"b", b"c", b"d"])
    pool.free(table)
    pool.touch(table[:1])
    pool.allocate(2)
    assert (pool.counters.allocated_blocks, pool.counters.freed_blocks) == (6, 4)
    assert (pool.counters.reused_blocks, pool.counters.evicted_blocks) == (1, 2)


def test_a_refused_allocation_changes_nothing() -> None:
    pool = BlockPool(4)
    table = pool.allocate(2)
    order = pool.free_order()
    with pytest.raises(
        OutOfBlocks, match="3 blocks needed, 2 of 4 are free; wait for a request to end"
    ) as raised:
        pool.allocate(3)
    assert (raised.value.needed, raised.value.free, raised.value.total) == (3, 2, 4)
    assert isinstance(raised.value, MemoryError)
    assert pool.free_order() == order
    pool.check([table])


def test_the_null_block_is_never_handed_out_counted_or_freed() -> None:
    pool = BlockPool(4, null_block=True)
    assert pool.num_usable_blocks == 3
    table = pool.allocate(3)
    assert 0 not in table
    pool.free([0, *table])
    pool.touch([0])
    pool.share([0])
    assert pool.ref_count(0) == 0
    assert 0 not in pool.free_order()
    assert pool.cache([0], [b"a"]) == []
    assert pool.lookup(b"a") is None
    pool.check([[]])


@pytest.mark.parametrize("num_blocks", [0, -1])
def test_a_pool_needs_a_block(num_blocks: int) -> None:
    with pytest.raises(ValueError, match="at least 1 blocks"):
        BlockPool(num_blocks)
    with pytest.raises(ValueError, match="at least 2 blocks"):
        BlockPool(1, null_block=True)


def test_misuse_is_named() -> None:
    pool = BlockPool(4)
    [block] = pool.allocate(1)
    with pytest.raises(IntegrityError, match="not in use"):
        pool.share([3])
    with pytest.raises(IntegrityError, match="nobody uses it"):
        pool.cache([3], [b"a"])
    pool.cache([block], [b"a"])
    with pytest.raises(IntegrityError, match="has a hash already"):
        pool.cache([block], [b"b"])
    with pytest.raises(ValueError, match="1 hashes for 2 blocks"):
        pool.cache([1, 2], [b"a"])
    pool.free([block])
    with pytest.raises(IntegrityError, match=f"block {block} was freed more often"):
        pool.free([block])
    pool.check([[]])


def test_a_growable_pool_grows_before_it_evicts() -> None:
    pool = BlockPool(2, growable=True)
    table = pool.allocate(2)
    pool.cache(table, [b"a", b"b"])
    pool.free(table)
    more = pool.allocate(5)
    assert pool.counters.evicted_blocks == 0
    assert pool.lookup_run([b"a", b"b"]) == table
    assert len({*more, *table}) == 7
    pool.check([more])


def test_groups_have_their_own_contents() -> None:
    pool = BlockPool(4, num_groups=2)
    a, b = pool.allocate(2)
    pool.cache([a], [b"x"], 0)
    pool.cache([b], [b"x"], 1)
    assert (pool.lookup(b"x", 0), pool.lookup(b"x", 1)) == (a, b)
    assert (pool.group_of(a), pool.group_of(b), pool.group_of(3)) == (0, 1, None)
    pool.uncache(a)
    assert (pool.lookup(b"x", 0), pool.lookup(b"x", 1)) == (None, b)
    pool.check([[a, b]])


def test_forgetting_all_leaves_blocks_with_their_holders() -> None:
    pool = BlockPool(4)
    table = pool.allocate(3)
    pool.cache(table, [b"a", b"b", b"c"])
    pool.free(table[2:])
    assert not pool.reset()
    pool.forget_all()
    assert pool.lookup_run([b"a"]) == []
    assert counts(pool) == (2, 0, 2)
    pool.free(table[:2])
    assert pool.reset()
    pool.check([[]])


@given(st.data())
def test_no_block_is_lost_or_handed_out_twice(data: st.DataObject) -> None:
    """Random allocate, share, append, free: counts equal table references, and free + cached + in use is all."""
    pool = BlockPool(data.draw(st.integers(2, 12)), null_block=data.draw(st.booleans()))
    tables: list[list[int]] = []
    names = 0
    for _ in range(data.draw(st.integers(1, 30))):
        what = data.draw(
            st.sampled_from(["allocate", "append", "share", "free", "cache", "touch", "uncache"])
        )
        table = data.draw(st.sampled_from(tables)) if tables else None
        if what in ("allocate", "append"):
            count = data.draw(st.integers(1, 4))
            held = {block for other in tables for block in other}
            if count > pool.num_available_blocks:
                with pytest.raises(OutOfBlocks):
                    pool.allocate(count)
                continue
            blocks = pool.allocate(count)
            assert len(set(blocks)) == count
            assert not held & set(blocks)
            if what == "append" and table is not None:
                table += blocks
            else:
                tables.append(blocks)
        elif what == "touch":
            cached = [block for block in pool.free_order() if pool.hash_of(block) is not None]
            tables.append(cached[: data.draw(st.integers(0, 3))])
            pool.touch(tables[-1])
        elif table is None:
            continue
        elif what == "share":
            pool.share(table)
            tables.append(list(table))
        elif what == "free":
            tables.remove(table)
            pool.free(table)
        elif what == "cache":
            fresh = [block for block in dict.fromkeys(table) if pool.hash_of(block) is None]
            names += 1
            # Sometimes a name that others carry too.
            pool.cache(fresh, [b"%d" % data.draw(st.integers(names, names + 1)) for _ in fresh])
        else:
            pool.uncache(table[0] if table else 1)
        pool.check(tables)
        references = Counter(block for other in tables for block in other)
        assert all(pool.ref_count(block) == references[block] for block in range(pool.num_blocks))
        assert sum(counts(pool)) == pool.num_usable_blocks


CORRUPTIONS: dict[str, Callable[[BlockPool], object]] = {
    "a lost block": lambda pool: pool._queue.pop_front(1),
    "a count too high": lambda pool: pool._refs.__setitem__(0, 2),
    "a used block queued": lambda pool: pool._queue.append([0]),
    "a hash nobody finds": lambda pool: pool._cached[0].clear(),
    "a hash without a block": lambda pool: pool._cached[0].__setitem__(b"z", 4),
    "a wrong number of cached blocks": lambda pool: setattr(pool, "_num_queued_hashed", 2),
    "a stale generation": lambda pool: pool.generations.__setitem__(1, 2),
    "a duplicate of nothing": lambda pool: pool._duplicates[0].__setitem__(b"z", [1]),
    "a block under the wrong group": lambda pool: pool._group_of.__setitem__(1, 1),
}


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_the_check_sees(corruption: str) -> None:
    pool = BlockPool(6, num_groups=2)
    table = pool.allocate(3)
    pool.cache(table, [b"a", b"b", b"c"])
    pool.free(table[2:])
    pool.check([table[:2]])
    CORRUPTIONS[corruption](pool)
    with pytest.raises(IntegrityError):
        pool.check([table[:2]])
