"""The behaviours that vLLM's own tests of prefix caching pin down, under the names of those tests.

Each test here stands for the test of the same name in vLLM's ``tests/v1/core/test_prefix_caching.py``; what does not apply
is listed in this folder's README. Written for this project's parts; every test ends with the integrity check.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from agentctx_engine.memory import (
    BlockPool,
    ExtraKeys,
    FullAttention,
    ImageSpan,
    KVManager,
    KVSequence,
    OutOfBlocks,
    SlidingWindow,
)
from agentctx_engine.memory.block_hash import NO_KEYS

BLOCK = 16
FULL = FullAttention()

managers: list[KVManager] = []


@pytest.fixture(autouse=True)
def every_test_ends_with_the_integrity_check() -> Iterator[None]:
    managers.clear()
    yield
    for kv in managers:
        kv.check()


def manager(num_blocks: int, block_size: int = BLOCK, **options: object) -> KVManager:
    """A manager with vLLM's layout: block 0 is the null block."""
    kv = KVManager(num_blocks, block_size, **({"null_block": True} | options))  # type: ignore[arg-type]
    managers.append(kv)
    return kv


def text(num_blocks: int, extra: int = 0, first: int = 0) -> list[int]:
    """Whole blocks, block i filled with token ``first + i``, and ``extra`` tokens more."""
    return [first + i for i in range(num_blocks) for _ in range(BLOCK)] + [first + num_blocks] * extra


def admit(kv: KVManager, tokens: list[int], keys: ExtraKeys = NO_KEYS, **options: bool) -> KVSequence:
    seq = kv.open(tokens, keys, **options)  # type: ignore[arg-type]
    assert kv.admit(seq, len(tokens))
    kv.commit(seq, len(tokens))
    return seq


def decode(kv: KVManager, seq: KVSequence, tokens: list[int]) -> None:
    for token in tokens:
        seq.append([token])
        assert kv.reserve(seq, len(seq))
        kv.commit(seq, len(seq))


def table(seq: KVSequence, group: int = 0) -> list[int]:
    return seq.block_table(group).tolist()


def test_prefill() -> None:
    kv = manager(11)
    [pool] = kv.pools
    common = text(3)
    first = admit(kv, [*common, *[100] * 7])
    assert first.num_computed_tokens == 55
    assert table(first) == [1, 2, 3, 4]

    parent = hashlib.sha256(b"NONE").digest()
    for index, block in enumerate([1, 2, 3]):
        packed = b"".join(token.to_bytes(4, "big") for token in common[index * BLOCK : (index + 1) * BLOCK])
        parent = hashlib.sha256(parent + packed).digest()
        assert pool.hash_of(block) == parent
    assert pool.hash_of(4) is None

    # A hit while the first still runs.
    second = kv.open([*common, *[200] * 5])
    hit = kv.match(second)
    assert (hit.num_tokens, hit.blocks[0]) == (48, [1, 2, 3])
    assert kv.admit(second, len(second), hit)
    kv.commit(second, len(second))
    assert table(second) == [1, 2, 3, 5]
    assert [pool.ref_count(block) for block in (1, 2, 3)] == [2, 2, 2]

    kv.free(first)
    kv.free(second)
    assert pool.free_order() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]

    # A hit after both have gone.
    third = admit(kv, [*common, *[300] * 6])
    assert table(third) == [1, 2, 3, 5]
    kv.free(third)
    assert pool.free_order() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]

    stranger = admit(kv, text(10, first=500))
    assert table(stranger) == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    assert pool.num_available_blocks == 0


def test_prefill_plp() -> None:
    """Who needs every position's logits reads no cache, but writes it."""
    kv = manager(21)
    [pool] = kv.pools
    tokens = text(3, 7)
    first = admit(kv, tokens)
    every_logit = kv.open(tokens, read_cache=False)
    assert kv.match(every_logit).num_tokens == 0
    assert kv.admit(every_logit, len(tokens))
    assert every_logit.num_computed_tokens == 0
    kv.commit(every_logit, len(tokens))
    assert table(every_logit) == [5, 6, 7, 8]
    assert [pool.hash_of(b) for b in (5, 6, 7)] == [pool.hash_of(b) for b in (1, 2, 3)]
    assert kv.match(kv.open(tokens)).blocks[0] == [1, 2, 3]
    kv.free(first)
    kv.free(every_logit)


def test_decode() -> None:
    kv = manager(11)
    [pool] = kv.pools
    seq = admit(kv, text(3, 7))
    decode(kv, seq, [50] * 4)
    assert table(seq) == [1, 2, 3, 4]
    assert pool.hash_of(4) is None
    # Five tokens fill the block, which then gets its hash; the next one has none.
    decode(kv, seq, [50] * 5)
    assert pool.hash_of(4) == seq.digests[3]
    decode(kv, seq, [50] * 5)
    assert table(seq) == [1, 2, 3, 4, 5]
    assert pool.hash_of(5) is None


def test_evict() -> None:
    kv = manager(11)
    [pool] = kv.pools
    first = admit(kv, text(5, 7))
    second = admit(kv, text(3, first=50))
    assert (table(first), table(second)) == ([1, 2, 3, 4, 5, 6], [7, 8, 9])
    kv.free(first)
    kv.free(second)
    assert pool.free_order() == [6, 10, 5, 4, 3, 2, 1, 9, 8, 7]
    third = admit(kv, [*text(2), 99, 99, 99])
    assert table(third) == [1, 2, 6]
    assert pool.free_order() == [10, 5, 4, 3, 9, 8, 7]


def test_hash_block_correct_reuse() -> None:
    kv = manager(2)
    [pool] = kv.pools
    kv.free(admit(kv, text(1)))
    assert pool.hash_of(1) is not None
    short = admit(kv, [7] * (BLOCK - 1))
    assert table(short) == [1]
    assert pool.hash_of(1) is None
    assert pool.num_findable_hashes == 0


def test_computed_blocks_not_evicted() -> None:
    kv = manager(3)
    first = admit(kv, text(1))
    second = admit(kv, text(1, first=50))
    kv.free(first)
    kv.free(second)
    # Block 1 is the next to be evicted, and the one that is hit.
    assert kv.pools[0].free_order() == [1, 2]
    third = admit(kv, text(2))
    assert table(third) == [1, 2]


def test_basic_prefix_caching_disabled() -> None:
    kv = manager(5, caching=False)
    first = admit(kv, text(2))
    kv.free(first)
    second = admit(kv, text(4))
    assert len(table(second)) == 4
    third = kv.open(text(1))
    assert kv.match(third).num_tokens == 0
    assert not kv.admit(third, len(third))
    assert kv.pools[0].num_findable_hashes == 0
    with pytest.raises(OutOfBlocks, match="1 blocks needed, 0 of 4 are free"):
        kv.pools[0].allocate(1)


def test_cache_blocks() -> None:
    kv = manager(11)
    [pool] = kv.pools
    seq = kv.open(text(4))
    assert kv.admit(seq, len(seq))
    kv.commit(seq, 2 * BLOCK)
    assert [pool.hash_of(block) for block in table(seq)] == [*seq.digests[:2], None, None]
    kv.commit(seq, 2 * BLOCK + 5)
    assert [pool.hash_of(block) for block in table(seq)] == [*seq.digests[:2], None, None]
    kv.commit(seq, 4 * BLOCK)
    assert [pool.hash_of(block) for block in table(seq)] == seq.digests
    # Hashing starts behind a hit.
    longer = kv.open([*text(4), *text(2, first=50)])
    assert kv.admit(longer, len(longer))
    assert longer.num_cached_blocks == [4]
    kv.commit(longer, len(longer))
    assert [pool.hash_of(block) for block in table(longer)] == longer.digests


def test_cache_blocks_multi_group() -> None:
    kv = manager(21, groups=[FULL, FULL])
    [pool] = kv.pools
    tokens = text(3)
    seq = admit(kv, tokens)
    assert [pool.lookup(digest, 0) for digest in seq.digests] == table(seq, 0)
    assert [pool.lookup(digest, 1) for digest in seq.digests] == table(seq, 1)
    assert not set(table(seq, 0)) & set(table(seq, 1))
    again = kv.open([*tokens, 99])
    assert kv.match(again).num_tokens == 48
    pool.uncache(table(seq, 1)[1])
    assert pool.lookup(seq.digests[1], 0) == table(seq, 0)[1]
    assert kv.match(again).num_tokens == 16


def test_mm_prefix_caching() -> None:
    kv = manager(31)
    tokens = [*text(1), *[4999] * BLOCK, *text(1, first=9)]
    cat = ExtraKeys(images=(ImageSpan("cat", 11, 10), ImageSpan("cat", 25, 4)))
    first = admit(kv, tokens, cat)
    assert kv.match(kv.open([*tokens, 1], cat)).num_tokens == 48

    # Another image leaves the first block different too, since the image begins there.
    dog = ExtraKeys(images=(ImageSpan("dog", 11, 10), ImageSpan("cat", 25, 4)))
    assert kv.match(kv.open([*tokens, 1], dog)).num_tokens == 0
    # The same image at another offset of the block is something else.
    moved = ExtraKeys(images=(ImageSpan("cat", 12, 10), ImageSpan("cat", 25, 4)))
    assert kv.match(kv.open([*tokens, 1], moved)).num_tokens == 0
    # Another second image: the first block is still the same.
    other = ExtraKeys(images=(ImageSpan("cat", 11, 10), ImageSpan("dog", 25, 4)))
    assert kv.match(kv.open([*tokens, 1], other)).num_tokens == 16
    # No image at all: the same token ids are not the same prompt.
    assert kv.match(kv.open([*tokens, 1])).num_tokens == 0
    kv.free(first)


def test_cache_key_salting() -> None:
    kv = manager(31)
    tokens = text(3)
    salted = ExtraKeys(cache_salt="salt1")
    assert list(salted.single_blocks(BLOCK, len(tokens))) == [0]
    assert salted.every_block() == b""
    seq = admit(kv, [*tokens, *[9] * 11], salted)
    assert kv.match(kv.open([*tokens, 4], salted)).num_tokens == 48
    for keys in (ExtraKeys(cache_salt="salt2"), ExtraKeys(cache_salt=""), NO_KEYS):
        other = kv.open([*tokens, 4], keys)
        assert kv.match(other).num_tokens == 0
        # The first block's hash differs, and through the chain every later one.
        assert not set(other.digests) & set(seq.digests)
    decode(kv, seq, [1, 1, 1, 1, 1])
    assert kv.match(kv.open([*seq.tokens.tolist(), 4], salted)).num_tokens == 64


def test_prefill_not_enough_free_blocks_with_computed_blocks() -> None:
    kv = manager(11)
    [pool] = kv.pools
    common = text(3)
    running = admit(kv, [*common, 7])
    ended = admit(kv, [*common, *text(2, first=50)])
    assert table(ended) == [1, 2, 3, 5, 6]
    kv.free(ended)
    blocker = admit(kv, text(4, first=80))
    assert (table(running), table(blocker)) == ([1, 2, 3, 4], [7, 8, 9, 10])
    assert pool.free_order() == [6, 5]

    # Five blocks hit, of which two are idle; one more is needed and none would be left.
    large = kv.open([*common, *text(2, first=50), 3])
    hit = kv.match(large)
    assert hit.blocks[0] == [1, 2, 3, 5, 6]
    before = [pool.ref_count(block) for block in range(11)]
    assert not kv.admit(large, len(large), hit)
    assert [pool.ref_count(block) for block in range(11)] == before
    assert pool.free_order() == [6, 5]
    assert table(large) == []


def test_reset_prefix_cache() -> None:
    kv = manager(11)
    [pool] = kv.pools
    seqs = [admit(kv, text(3, 7)), admit(kv, text(3, 5))]
    assert not kv.reset()
    assert pool.num_findable_hashes == 3
    kv.free(seqs[0])
    assert not kv.reset()
    kv.free(seqs[1])
    assert kv.reset()
    assert pool.num_findable_hashes == 0
    assert all(pool.hash_of(block) is None for block in range(11))
    assert kv.match(kv.open(text(3, 7))).num_tokens == 0


def test_prefix_cache_stats_disabled() -> None:
    kv = manager(11, stats=False)
    assert kv.stats is None
    kv.free(admit(kv, text(2, 1)))
    again = admit(kv, text(2, 1))
    assert kv.stats is None
    kv.preempt(again)
    assert kv.reset()
    assert kv.stats is None


def test_maybe_evict_cached_block() -> None:
    """Of blocks with the same hash, one that is evicted leaves the others findable."""
    pool = BlockPool(4)
    a, b, c, d = pool.allocate(4)
    one, two = b"hash one", b"hash two"
    assert pool.cache([a, b, c, d], [one, two, one, one]) == [2, 3]
    pool.uncache(b)
    assert (pool.lookup(two), pool.hash_of(b)) == (None, None)
    assert pool.lookup(one) == a
    pool.uncache(a)
    assert pool.lookup(one) == c
    pool.uncache(d)
    assert pool.lookup(one) == c
    pool.check([[a, b, c, d]])
    pool.uncache(c)
    assert pool.lookup(one) is None
    pool.uncache(c)
    pool.check([[a, b, c, d]])


def test_block_lookup_cache_single_block_per_key() -> None:
    pool = BlockPool(2)
    pool.cache(pool.allocate(2), [b"k0", b"k1"])
    assert (pool.lookup(b"k0"), pool.lookup(b"k1"), pool.lookup(b"k2")) == (0, 1, None)
    pool.uncache(0)
    assert (pool.lookup(b"k0"), pool.lookup(b"k1")) == (None, 1)
    pool.check([[0, 1]])


def test_block_lookup_cache_multi_blocks_per_key() -> None:
    pool = BlockPool(4)
    pool.cache(pool.allocate(4), [b"k0", b"k0", b"k1", b"k1"])
    assert pool.lookup(b"k0") == 0
    for left, block in ((1, 0), (None, 1)):
        pool.uncache(block)
        assert pool.lookup(b"k0") == left
    # The younger one first: the older goes on answering.
    pool.uncache(3)
    assert pool.lookup(b"k1") == 2
    pool.uncache(2)
    assert pool.lookup(b"k1") is None
    pool.check([[0, 1, 2, 3]])


def test_different_block_size() -> None:
    kv = manager(31, groups=[FullAttention(block_size=32), FullAttention(block_size=16)])
    [pool] = kv.pools
    tokens = text(6)
    seq = admit(kv, tokens)
    assert (len(table(seq, 0)), len(table(seq, 1))) == (3, 6)
    # A coarse block goes by the last fine hash inside it.
    assert pool.hash_of(table(seq, 0)[0]) == seq.digests[1] == pool.hash_of(table(seq, 1)[1])
    again = kv.open([*tokens, 7])
    assert kv.match(again).num_tokens == 96
    assert kv.match(kv.open(tokens)).num_tokens == 64
    pool.uncache(table(seq, 1)[5])
    assert kv.match(again).num_tokens == 64
    pool.uncache(table(seq, 1)[2])
    assert kv.match(again).num_tokens == 32


@pytest.mark.parametrize(
    "groups", [[FULL], [FULL, FULL, SlidingWindow(40)]], ids=["one group", "three groups"]
)
def test_cache_hit_local_and_external(groups: list[FullAttention | SlidingWindow]) -> None:
    """Keys and values that the caller brings come behind what is found here."""
    kv = manager(61, groups=groups)
    kv.free(admit(kv, text(2)))
    seq = kv.open(text(6))
    hit = kv.match(seq)
    assert hit.num_tokens == 32
    assert kv.admit(seq, len(seq), hit, num_external_tokens=48)
    assert seq.num_computed_tokens == 80
    for group in range(len(groups)):
        assert table(seq, group)[:2] == hit.blocks[group]
        assert len(table(seq, group)) == 6
    # Not findable before the caller says that they are there.
    assert kv.match(kv.open(text(6))).num_tokens == 32
    kv.commit(seq, 80)
    assert kv.match(kv.open(text(6))).num_tokens == 80


def test_external_tokens_beyond_a_window_take_no_blocks() -> None:
    kv = manager(61, groups=[FULL, SlidingWindow(17)])
    seq = kv.open(text(6))
    assert kv.admit(seq, len(seq), num_external_tokens=80)
    # A query at position 80 sees 64 … 80: blocks 0 … 3 are behind it.
    assert table(seq, 1)[:4] == [0, 0, 0, 0]
    assert 0 not in table(seq, 1)[4:]
    assert 0 not in table(seq, 0)


@pytest.mark.parametrize("hit_first", [True, False], ids=["with a local hit", "external only"])
def test_cache_hit_local_and_external_preempt_and_reallocate(hit_first: bool) -> None:
    kv = manager(31)
    if hit_first:
        kv.free(admit(kv, text(2)))
    seq = kv.open(text(6))
    local = kv.match(seq).num_tokens
    assert local == (32 if hit_first else 0)
    assert kv.admit(seq, len(seq), num_external_tokens=80 - local)
    kv.commit(seq, 80)
    kv.preempt(seq)
    assert kv.pools[0].num_used_blocks == 0
    # What was brought in is a local hit now.
    hit = kv.match(seq)
    assert hit.num_tokens == 80
    assert kv.admit(seq, len(seq), hit)
    kv.commit(seq, len(seq))
    assert kv.stats is not None
    assert (kv.stats.resumed_requests, kv.stats.resumed_hit_tokens) == (1, 80)


def test_get_unhashed_block_ids_all_groups() -> None:
    kv = manager(31, groups=[FULL, FULL])
    seq = kv.open(text(2, 5))
    assert kv.admit(seq, len(seq))
    assert kv.unhashed_blocks(seq) == [table(seq, 0), table(seq, 1)]
    kv.commit(seq, 2 * BLOCK)
    assert kv.unhashed_blocks(seq) == [table(seq, 0)[2:], table(seq, 1)[2:]]
    whole = admit(kv, text(2, first=70))
    assert kv.unhashed_blocks(whole) == [[], []]


def test_device_eviction_keeps_host_prefix() -> None:
    """Blocks of the two tiers have numbers of their own: evicting one says nothing about the other's of that number."""
    kv = KVManager(2, BLOCK, host_blocks=4)
    managers.append(kv)
    host = kv.host
    assert host is not None
    first = admit(kv, text(2))
    digests = first.digests
    kv.free(first)
    kv.free(admit(kv, text(2, first=50)))
    kv.take_transfers()
    on_host = {digest: host.lookup(digest, 0) for digest in digests}
    assert set(on_host.values()) == {0, 1}
    kv.free(admit(kv, text(2, first=80)))
    kv.take_transfers()
    assert {digest: host.lookup(digest, 0) for digest in digests} == on_host
    assert kv.match(kv.open(text(2, 1))).num_tokens == 32


def test_can_fit_full_sequence_swa_cap_admits_long_prompt() -> None:
    kv = manager(9, groups=[SlidingWindow(2 * BLOCK)])
    seq = kv.open(text(40))
    assert kv.can_ever_fit(len(seq), chunk_tokens=BLOCK)
    assert kv.can_fit_whole(seq, BLOCK, kv.match(seq))
    # Taken chunk by chunk, it does fit.
    assert kv.admit(seq, BLOCK)
    for end in range(BLOCK, len(seq) + 1, BLOCK):
        assert kv.reserve(seq, end)
        kv.commit(seq, end)
    # In one step every position needs a block of its own.
    assert not kv.can_ever_fit(len(seq), chunk_tokens=len(seq))


def test_can_fit_full_sequence_full_attention_still_gates_oversized() -> None:
    kv = manager(31, groups=[FULL, SlidingWindow(2 * BLOCK)])
    fits, too_long = kv.open(text(20)), kv.open(text(31))
    assert kv.can_fit_whole(fits, BLOCK, kv.match(fits))
    assert not kv.can_fit_whole(too_long, BLOCK, kv.match(too_long))
    assert not kv.can_ever_fit(len(too_long), chunk_tokens=BLOCK)


def test_full_sequence_admission_reserves_device_blocks_for_immediate_chunk() -> None:
    kv = manager(13)
    first, second = kv.open(text(8)), kv.open(text(8, first=50))
    assert kv.can_fit_whole(first, 2 * BLOCK, kv.match(first))
    assert kv.admit(first, 2 * BLOCK)
    assert len(table(first)) == 2
    # Ten blocks are left: the second would fit whole, were the first not still to grow.
    assert kv.can_fit_whole(second, 2 * BLOCK, kv.match(second))
    still_to_come = kv.groups[0].num_blocks_for(len(first)) - len(table(first))
    assert not kv.admit(second, len(second), keep_free=still_to_come)
    assert kv.admit(second, 2 * BLOCK, keep_free=still_to_come)
    assert len(table(second)) == 2
