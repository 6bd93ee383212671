"""Sliding windows and hybrids: tables of cached patterns, blocks that fall out, and estimates that equal what is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctx_engine.memory import (
    BlockPool,
    FullAttention,
    KVManager,
    KVSequence,
    SlidingWindow,
    WindowRetention,
)
from agentctx_engine.memory.layer_groups import LayerGroup, peak_blocks

FULL = FullAttention()


def window_group(window: int, block_size: int, cached: str) -> tuple[LayerGroup, list[bytes]]:
    """A group in whose pool block i + 1 holds the text's i-th block, wherever ``cached`` says T."""
    pool = BlockPool(len(cached) + 1, null_block=True)
    hashes = [b"%d" % index for index in range(len(cached))]
    blocks = pool.allocate(len(cached))
    held = [index for index, letter in enumerate(cached) if letter == "T"]
    pool.cache([blocks[i] for i in held], [hashes[i] for i in held])
    group = LayerGroup(
        SlidingWindow(window), 0, block_size=block_size, hash_block_size=block_size, pool=pool, pool_group=0
    )
    return group, hashes


@pytest.mark.parametrize(
    ("cached", "num_blocks"),
    [
        ("TTFTFFTTFTTT", 12),
        ("TTFTFFTTFFF", 8),
        ("T", 1),
        ("F", 0),
        ("TFFF", 1),  # a run that starts with the text needs nothing before it
        ("FTFF", 0),
        ("FTTF", 3),
        ("FFFF", 0),
        ("TTTT", 4),
        ("TFTFTF", 1),
        ("FFFTT", 5),
    ],
)
def test_possible_cached_prefix(cached: str, num_blocks: int) -> None:
    """Blocks of 2 and a window of 4: the token behind a hit sees 3 tokens of it, in 2 blocks."""
    group, hashes = window_group(4, 2, cached)
    found = group.longest_hit(hashes, len(hashes), 2)
    assert len(found) == num_blocks
    # Only the last two blocks are taken; what a window has left behind is the null block.
    assert [block for block in found if block] == [i + 1 for i in range(max(0, num_blocks - 2), num_blocks)]


def test_a_window_of_one_token_needs_nothing() -> None:
    group, hashes = window_group(1, 2, "FFFF")
    assert group.longest_hit(hashes, 4, 2) == [0, 0, 0, 0]


def test_the_end_of_the_run_is_aligned() -> None:
    """A hit that must be a multiple of 4 tokens, with blocks of 2: a run may not end inside."""
    group, hashes = window_group(4, 2, "FTTTTF")
    assert group.longest_hit(hashes, 6, 4) == [0, 0, 3, 4]
    group, hashes = window_group(4, 2, "FFFTTF")
    assert group.longest_hit(hashes, 6, 4) == []


@given(st.text("TF", min_size=1, max_size=14), st.integers(1, 9), st.integers(1, 3), st.integers(1, 2))
def test_longest_hit_is_the_longest(cached: str, window: int, block_size: int, coarse: int) -> None:
    group, hashes = window_group(window, block_size, cached)
    alignment = block_size * coarse

    def serves(num_blocks: int) -> bool:
        oldest = max(0, num_blocks * block_size - window + 1)
        return all(cached[i] == "T" for i in range(oldest // block_size, num_blocks))

    expected = max(n for n in range(len(cached) + 1) if n * block_size % alignment == 0 and serves(n))
    assert len(group.longest_hit(hashes, len(cached), alignment)) == expected


def serve(kv: KVManager, tokens: list[int], chunk: int | None = None) -> KVSequence:
    seq = kv.open(tokens)
    assert kv.admit(seq, chunk or len(tokens))
    for end in range(chunk or len(tokens), len(tokens) + 1, chunk or 1):
        assert kv.reserve(seq, end)
        kv.commit(seq, end)
    return seq


def test_remove_skipped_blocks() -> None:
    """Blocks of 2, window 4. A block goes when the next query sees none of it, the latest of those that go first."""
    kv = KVManager(20, 2, groups=[SlidingWindow(4)])
    seq = kv.open(list(range(12)))
    assert kv.admit(seq, 12)
    tables = {}
    for computed in (4, 5, 6, 7, 11):
        kv.commit(seq, computed)
        assert kv.reserve(seq, 12)
        tables[computed] = seq.block_table().tolist()
    # A query at position p sees p - 3 … p: at 5 that is 2 … 5, so block 0 goes.
    assert tables == {
        4: [1, 2, 3, 4, 5, 6],
        5: [0, 2, 3, 4, 5, 6],
        6: [0, 2, 3, 4, 5, 6],
        7: [0, 0, 3, 4, 5, 6],
        11: [0, 0, 0, 0, 5, 6],
    }
    assert kv.pools[0].free_order()[-4:] == [1, 2, 4, 3]
    kv.check()


def test_a_freed_window_block_is_found_until_it_is_reused() -> None:
    kv = KVManager(20, 2, groups=[SlidingWindow(4)])
    seq = serve(kv, list(range(12)), chunk=2)
    assert kv.pools[0].num_used_blocks < 6
    branch = kv.open([0, 1, 2, 3, 99])
    assert kv.match(branch).num_tokens == 4
    kv.free(seq)
    kv.check()


def test_freeing_skips_null_blocks() -> None:
    kv = KVManager(20, 2, groups=[SlidingWindow(4)])
    seq = serve(kv, list(range(12)), chunk=2)
    assert seq.block_table().tolist()[:3] == [0, 0, 0]
    kv.free(seq)
    assert kv.pools[0].num_used_blocks == 0
    assert 0 not in kv.pools[0].free_order()
    kv.check()


@pytest.mark.parametrize("windows", [[4], [4, 8], [4, 8, 12]])
def test_hybrid_hit_is_what_all_groups_can_serve(windows: list[int]) -> None:
    """Two to four groups: evicting a block of one group shortens the hit of all to what that group still serves."""
    kv = KVManager(100, 2, groups=[FULL, *(SlidingWindow(window) for window in windows)])
    seq = serve(kv, list(range(16)))
    [pool] = kv.pools
    tables = [seq.block_table(group).tolist() for group in range(len(kv.groups))]
    again = kv.open([*range(16), 99])
    assert kv.match(again).num_tokens == 16
    for group, table in enumerate(tables[1:], 1):
        # The last block of one window group gone: the hit must end before it, where the window is whole.
        digest = seq.digests[7]
        block = pool.lookup(digest, group)
        assert block == table[7]
        pool.uncache(block)
        assert kv.match(again).num_tokens == 14
    pool.uncache(tables[0][4])
    assert kv.match(again).num_tokens == 8
    kv.free(seq)
    kv.check()


def test_shortening_for_one_window_moves_the_other() -> None:
    """Each group alone could serve more than both together: the search goes on until they agree."""
    kv = KVManager(100, 2, groups=[SlidingWindow(3), SlidingWindow(3)])
    seq = serve(kv, list(range(12)))
    [pool] = kv.pools
    for group, gone in ((0, 5), (1, 4), (0, 3)):
        block = pool.lookup(seq.digests[gone], group)
        assert block is not None
        pool.uncache(block)
    # Group 0 serves 10, 6, …; group 1 serves 12, 8, 6: the first length that both serve is 6.
    assert kv.match(kv.open([*range(12), 99])).num_tokens == 6
    kv.free(seq)
    kv.check()


@pytest.mark.parametrize("num_blocks", [40, [20, 20]], ids=["one pool", "a pool each"])
def test_groups_share_a_pool_or_have_their_own(num_blocks: int | list[int]) -> None:
    kv = KVManager(num_blocks, 2, groups=[FULL, SlidingWindow(4)])
    seq = serve(kv, list(range(12)), chunk=2)
    used = [pool.num_used_blocks for pool in kv.pools]
    assert used == ([9] if isinstance(num_blocks, int) else [6, 3])
    assert kv.match(kv.open([*range(12), 99])).num_tokens == 12
    kv.free(seq)
    kv.check()


def test_bad_layouts_are_named() -> None:
    with pytest.raises(ValueError, match="2 pools for 1 groups; give one number, or one for each group"):
        KVManager([4, 4], 2)
    with pytest.raises(ValueError, match="a sliding window needs the null block"):
        KVManager(8, 2, groups=[SlidingWindow(4)], null_block=False)
    with pytest.raises(ValueError, match="a window holds at least one token"):
        SlidingWindow(0)
    with pytest.raises(ValueError, match="all multiples of the smallest"):
        KVManager(8, groups=[FullAttention(4), FullAttention(6)])
    with pytest.raises(ValueError, match="at least one group"):
        KVManager(8, groups=[])


@given(
    tokens=st.integers(1, 60),
    chunk=st.integers(1, 20),
    window=st.integers(1, 20),
    block_size=st.integers(1, 6),
)
def test_predictor_matches_allocator(tokens: int, chunk: int, window: int, block_size: int) -> None:
    """``peak_blocks`` is what a sequence takes when it is computed chunk by chunk, for every group: to the block."""
    kv = KVManager([100, 100], block_size, groups=[FULL, SlidingWindow(window)])
    seq = kv.open(list(range(tokens)))
    most = [0, 0]
    assert kv.admit(seq, min(chunk, tokens))
    for end in range(chunk, tokens + chunk, chunk):
        end = min(end, tokens)
        assert kv.reserve(seq, end)
        most = [max(m, pool.num_used_blocks) for m, pool in zip(most, kv.pools, strict=True)]
        kv.commit(seq, end)
    assert most == [peak_blocks(group, tokens, chunk) for group in kv.groups]
    small = KVManager([100, most[1] + 1], block_size, groups=[FULL, SlidingWindow(window)])
    assert small.can_ever_fit(tokens, chunk)
    smaller = (
        KVManager([100, most[1]], block_size, groups=[FULL, SlidingWindow(window)]) if most[1] > 1 else None
    )
    assert smaller is None or not smaller.can_ever_fit(tokens, chunk)
    kv.free(seq)
    kv.check()


@pytest.mark.parametrize(
    ("retention", "ends"),
    [
        (None, list(range(2, 41, 2))),
        (WindowRetention(), [40]),
        (WindowRetention(1, 8), [32, 40]),
        (WindowRetention(2, 8), [24, 32, 40]),
        (WindowRetention(1, 7), [32, 40]),  # rounded up to whole blocks
    ],
)
def test_a_text_goes_on_from_its_end_and_its_newest_branch_points(
    retention: WindowRetention | None, ends: list[int]
) -> None:
    kv = KVManager([64, 64], 2, groups=[FULL, SlidingWindow(4)], window_retention=retention)
    text = list(range(100, 141))
    seq = kv.open(text[:1])
    assert kv.admit(seq, 1)
    for token in text[1:]:
        seq.append([token])
        assert kv.reserve(seq, len(seq))
        kv.commit(seq, len(seq))
    kv.free(seq)
    hits = {kv.match(kv.open([*text[:length], 7])).num_tokens for length in range(1, 41)}
    assert sorted(hits - {0}) == ends
    kv.check()


def test_blocks_that_a_window_left_behind_are_not_missing_hashes() -> None:
    kv = KVManager([16, 16], 2, groups=[FULL, SlidingWindow(4)])
    seq = kv.open(list(range(13)))
    assert kv.admit(seq, 13)
    kv.commit(seq, 13)
    assert kv.reserve(seq, 14)
    null = kv.groups[1].pool.null_block
    assert null in seq.tables[1].ids
    assert kv.unhashed_blocks(seq) == [[seq.tables[0].ids[-1]], [seq.tables[1].ids[-1]]]
