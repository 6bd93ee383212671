"""Sequences: tables, slots, forks, preemption - and calls that can't be meant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctx_engine.memory import BlockTable, FirstFitAllocator, KVManager, pad_block_tables
from agentctx_engine.memory.errors import IntegrityError


@given(st.integers(1, 5), st.lists(st.integers(0, 99), min_size=1, max_size=30, unique=True), st.data())
def test_slot_mapping_is_slot_by_slot(block_size: int, ids: list[int], data: st.DataObject) -> None:
    table = BlockTable(block_size)
    for block in ids:
        table.extend([block])
    assert table.as_array().tolist() == table.ids == ids
    last = len(ids) * block_size
    start = data.draw(st.integers(0, last))
    end = data.draw(st.integers(start, last))
    mapping = table.slot_mapping(start, end)
    assert mapping.dtype == np.int64
    assert mapping.tolist() == [table.slot(position) for position in range(start, end)]
    assert mapping.tolist() == [ids[p // block_size] * block_size + p % block_size for p in range(start, end)]
    with pytest.raises(IndexError, match="has no block"):
        table.slot_mapping(0, last + 1)


def test_replace_and_truncate() -> None:
    table = BlockTable(4, [5, 6, 7])
    assert table.replace(1, 9) == 6
    assert table.truncate(2) == [7]
    assert (table.ids, table.as_array().tolist(), len(table)) == ([5, 9], [5, 9], 2)
    table.extend([1])
    assert table.as_array().tolist() == [5, 9, 1]


def test_tables_of_a_batch() -> None:
    batch = pad_block_tables([BlockTable(4, [5, 6, 7]), BlockTable(4), BlockTable(4, [1])], fill=-1)
    assert (batch.dtype, batch.tolist()) == (np.int32, [[5, 6, 7], [-1, -1, -1], [1, -1, -1]])
    assert pad_block_tables([]).shape == (0, 0)


def test_a_fork_takes_only_what_is_written() -> None:
    kv = KVManager(16, 4)
    seq = kv.open(list(range(6)))
    assert kv.admit(seq, 14)
    kv.commit(seq, 6)
    child = kv.fork(seq)
    assert (len(seq.tables[0]), len(child.tables[0])) == (4, 2)
    child.append([7])
    assert kv.reserve(child, 7)
    [copy] = kv.take_copies()
    assert copy.source == seq.tables[0].ids[1]
    # The parent has the partly filled block for itself again.
    seq.append([8])
    assert kv.reserve(seq, 7)
    assert kv.take_copies() == []
    kv.free(seq)
    kv.free(child)
    kv.check()


def test_a_fork_of_a_fork_before_any_copy_ran_copies_from_the_first() -> None:
    kv = KVManager(16, 4)
    seq = kv.open([1, 2, 3, 4, 5])
    assert kv.admit(seq, 5)
    kv.commit(seq, 5)
    child = kv.fork(seq)
    assert kv.reserve(child, 6)
    grandchild = kv.fork(child)
    assert kv.reserve(grandchild, 6)
    # All copies run at once, so the second can't read what the first is only about to write.
    origin = seq.tables[0].ids[1]
    assert [copy.source for copy in kv.take_copies()] == [origin, origin]
    for one in (seq, child, grandchild):
        kv.free(one)
    kv.check()


def test_a_copy_holds_its_source_until_it_is_taken() -> None:
    kv = KVManager(3, 4)
    seq = kv.open([1, 2])
    assert kv.admit(seq, 2)
    kv.commit(seq, 2)
    child = kv.fork(seq)
    assert kv.reserve(child, 3)
    source = seq.tables[0].ids[0]
    kv.free(seq)
    stranger = kv.open(list(range(50, 58)))
    assert not kv.admit(stranger, 8), "the source must not be handed out before it was copied"
    assert kv.take_copies() == [(source, child.tables[0].ids[0], 0)]
    assert kv.admit(stranger, 8)
    kv.check()


def test_a_preempted_sequence_comes_back_as_a_hit() -> None:
    kv = KVManager(16, 4)
    seq = kv.open(list(range(10)))
    assert kv.admit(seq, 10)
    kv.commit(seq, 10)
    seq.append([10, 11, 12])
    assert kv.reserve(seq, 13)
    kv.commit(seq, 13)
    kv.preempt(seq)
    assert (seq.num_computed_tokens, len(seq), kv.pools[0].num_used_blocks) == (0, 13, 0)
    hit = kv.match(seq)
    assert hit.num_tokens == 12
    assert kv.admit(seq, 13, hit)
    assert kv.stats is not None
    assert (kv.stats.requests, kv.stats.hit_tokens) == (1, 0)
    assert (kv.stats.resumed_requests, kv.stats.resumed_hit_tokens) == (1, 12)
    kv.check()


def test_stats_count_an_admission_once_and_tell_none_from_nothing() -> None:
    kv = KVManager(4, 4)
    assert kv.stats is not None
    assert kv.stats.hit_rate is None
    seq = kv.open(list(range(12)))
    assert kv.admit(seq, 12)
    kv.commit(seq, 12)
    waiting = kv.open([*range(8), *range(90, 99)])
    for _ in range(3):
        assert not kv.admit(waiting, 17)
    assert (kv.stats.requests, kv.stats.prompt_tokens, kv.stats.hit_rate) == (1, 12, 0.0)
    kv.free(seq)
    shorter = kv.open(list(range(10)))
    assert kv.admit(shorter, 10)
    assert (kv.stats.requests, kv.stats.hit_tokens, kv.stats.hit_rate) == (2, 8, 8 / 22)
    kv.check()


def test_reserve_refused_takes_nothing() -> None:
    kv = KVManager(3, 4)
    seq = kv.open(list(range(6)))
    assert kv.admit(seq, 6)
    kv.commit(seq, 6)
    child = kv.fork(seq)
    child.append(list(range(8)))
    before = kv.pools[0].free_order()
    # A copy of the shared block and a new one: two, and one is left.
    assert not kv.reserve(child, 14)
    assert (kv.pools[0].free_order(), kv.take_copies()) == (before, [])
    assert kv.reserve(child, 7, keep_free=0)
    assert not kv.reserve(seq, 9, keep_free=1)
    kv.check()


def test_calls_that_cannot_be_meant() -> None:
    kv = KVManager(8, 4)
    seq = kv.open(list(range(6)))
    with pytest.raises(ValueError, match="7 computed tokens are more than the text's 6"):
        kv.admit(seq, 6, num_external_tokens=7)
    assert kv.admit(seq, 6)
    with pytest.raises(ValueError, match="holds memory already; use reserve"):
        kv.admit(seq, 6)
    with pytest.raises(ValueError, match="9 computed tokens don't fit 6 tokens in 8 slots"):
        kv.commit(seq, 9)
    kv.check()


def test_the_check_sees_a_table_that_the_pool_does_not_know_of() -> None:
    kv = KVManager(8, 4)
    seq = kv.open(list(range(6)))
    assert kv.admit(seq, 6)
    seq.tables[0].replace(0, 5)
    with pytest.raises(IntegrityError, match="references, tables hold"):
        kv.check()


def test_appending_nothing_changes_nothing() -> None:
    kv = KVManager(8, 4)
    given_tokens = np.array([1, 2, 3], dtype=np.int32)
    seq = kv.open(given_tokens)
    seq.append([])
    given_tokens[0] = 9
    assert seq.tokens.tolist() == [1, 2, 3], "a sequence's text is its own"


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=40))
def test_first_fit_never_overlaps_and_refuses_only_when_no_gap_fits(steps: list[tuple[bool, int]]) -> None:
    pool = FirstFitAllocator(100)
    for free_one, number in steps:
        if free_one and pool.regions:
            pool.free(pool.regions[number % len(pool.regions)])
        elif not free_one:
            gaps, free = pool.gaps, pool.num_free_slots
            region = pool.allocate(number)
            assert (region is None) == (max(gaps, default=0) < number)
            assert free - pool.num_free_slots == (number if region else 0)
        assert sum(pool.gaps) == pool.num_free_slots
        pool.check()


def test_regions_that_cannot_be_meant() -> None:
    pool = FirstFitAllocator(10)
    with pytest.raises(ValueError, match="11 tokens don't fit a region of 10 slots"):
        pool.allocate(10, 11)
    with pytest.raises(ValueError, match="at least one slot"):
        FirstFitAllocator(0)
    region = pool.allocate(10, 4)
    assert region is not None
    assert pool.utilisation == 0.4
    pool.free(region)
    with pytest.raises(ValueError, match="is not allocated"):
        pool.free(region)


def test_what_was_dropped_while_it_ran_is_not_found_when_it_ends() -> None:
    """Its blocks go back without a hash; what the manager remembers of them must not bring them back."""
    kv = KVManager(8, 4)
    seq = kv.open(list(range(9)))
    assert kv.admit(seq, 9)
    kv.commit(seq, 9)
    kv.drop_cached()
    assert kv.match(kv.open(list(range(9)))).num_tokens == 0
    kv.free(seq)
    assert kv.pools[0].num_cached_blocks == 0
    assert kv.match(kv.open(list(range(9)))).num_tokens == 0
    kv.check()


def test_a_remembered_block_that_was_given_away_is_not_believed() -> None:
    """Evicted and filled with other text, which is hashed too: the number is the same, the generation is not."""
    kv = KVManager(2, 4)
    for first in (0, 100, 0, 100):
        seq = kv.open(list(range(first, first + 8)))
        assert kv.match(seq).num_tokens == 0
        assert kv.admit(seq, 8)
        kv.commit(seq, 8)
        kv.free(seq)
        assert kv.match(kv.open(list(range(first, first + 8)))).num_tokens == 4
        kv.check()


@pytest.mark.parametrize("one", [7, np.int32(7), np.int64(7)])
def test_tokens_arrive_one_by_one_or_together(one: int) -> None:
    """A single decoded token takes a shorter way; it ends in the same place."""
    kv = KVManager(64, 4)
    single, together = kv.open([1, 2, 3]), kv.open([1, 2, 3])
    for _ in range(70):
        single.append([one])
    together.append([7] * 70)
    assert single.tokens.tolist() == together.tokens.tolist()
    assert single.digests == together.digests
    for wrong in (-1, 2**31):
        with pytest.raises(ValueError, match="token ids are integers"):
            single.append([wrong])
        with pytest.raises(ValueError, match="token ids are integers"):
            single.append([wrong, 1])
    assert len(single) == 73


def test_room_for_others_is_kept_even_where_nothing_is_taken() -> None:
    kv = KVManager(3, 4)
    seq = kv.open(list(range(5)))
    assert kv.admit(seq, 5)
    assert kv.reserve(seq, 6)
    assert kv.reserve(seq, 6, keep_free=1)
    assert not kv.reserve(seq, 6, keep_free=2)
    assert not kv.reserve(seq, 9, keep_free=1)
    assert kv.reserve(seq, 9)
    kv.check()


def test_whether_a_whole_text_fits_now() -> None:
    """Counted to the block: what others hold is gone, what a hit brings is not, but for idle blocks, which must be kept."""
    kv = KVManager(4, 4)

    def fits(tokens: list[int]) -> bool:
        seq = kv.open(tokens)
        return kv.can_fit_whole(seq, 64, kv.match(seq))

    assert fits(list(range(16)))
    assert not fits(list(range(17)))
    other = kv.open(list(range(8)))
    assert kv.admit(other, 8)
    kv.commit(other, 8)
    assert fits(list(range(100, 108)))
    assert not fits(list(range(100, 109)))
    assert fits([*range(8), *range(100, 108)]), "two of its blocks are there, in use"
    assert not fits([*range(8), *range(100, 109)])
    kv.free(other)
    assert fits([*range(8), *range(100, 108)]), (
        "now they are idle: still there, and no longer free for others"
    )
    assert not fits([*range(8), *range(100, 109)])
    assert fits(list(range(100, 116)))
    assert kv.can_ever_fit(16, 64)
    assert not kv.can_ever_fit(17, 64)
