"""Token-granular reuse: a hit never loses more than the last token of what is there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx_engine.memory import (
    NO_KEYS,
    Adapter,
    ExtraKeys,
    FullAttention,
    ImageSpan,
    KVManager,
    KVSequence,
    SlidingWindow,
)
from agentctx_engine.memory.paged_cache import PagedCache

BLOCK = 4


def serve(kv: KVManager, tokens: list[int]) -> KVSequence:
    seq = kv.open(tokens)
    assert kv.admit(seq, len(tokens))
    kv.take_copies()
    kv.commit(seq, len(tokens))
    kv.free(seq)
    return seq


def test_the_block_is_copied_and_the_copy_filled() -> None:
    kv = KVManager(8, BLOCK, token_granular=True)
    serve(kv, [1, 2, 3, 4, 5, 6])
    [pool] = kv.pools
    tail = pool.free_order()[-2]  # behind it only the head, which goes last
    seq = kv.open([1, 2, 3, 4, 5, 6, 7])
    hit = kv.match(seq)
    assert hit.num_tokens == 6
    assert hit.partial is not None
    assert (hit.partial.block, hit.partial.num_tokens) == (tail, 2)
    assert kv.admit(seq, 7, hit)
    assert seq.num_computed_tokens == 6
    own = seq.tables[0].ids[1]
    assert own != tail
    # The source is held until the engine has taken the copy.
    assert pool.ref_count(tail) == 1
    assert kv.take_copies() == [(tail, own, 0)]
    assert pool.ref_count(tail) == 0
    kv.free(seq)
    kv.check()


def test_siblings_that_differ_later_still_share_their_first_tokens() -> None:
    kv = KVManager(16, BLOCK, token_granular=True)
    serve(kv, [1, 2, 3, 4, 5, 5, 5, 5])
    serve(kv, [1, 2, 3, 4, 5, 6, 7, 7])
    assert kv.match(kv.open([1, 2, 3, 4, 5, 6, 7, 9])).num_tokens == 7
    assert kv.match(kv.open([1, 2, 3, 4, 5, 5, 9])).num_tokens == 6
    assert kv.match(kv.open([1, 2, 9])).num_tokens == 2
    kv.check()


def test_a_refused_admission_holds_nothing() -> None:
    kv = KVManager(4, BLOCK, token_granular=True)
    serve(kv, [1, 2, 3, 4, 5, 6])
    running = kv.open([7, 7])
    assert kv.admit(running, 2)
    [pool] = kv.pools
    before = pool.free_order()
    seq = kv.open([1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 9])
    # Three blocks more than the whole block of the hit, two blocks left.
    assert not kv.admit(seq, 13)
    assert pool.free_order() == before
    kv.check()


def test_a_part_whose_source_leaves_no_room_is_computed_anew() -> None:
    """Found in whole blocks only, and said so: a text that fits the pool is never refused for what it could reuse."""
    kv = KVManager(3, BLOCK, token_granular=True)
    serve(kv, [1, 2, 3, 4, 5, 6])
    seq = kv.open([1, 2, 3, 4, 5, 6, 7, 8])
    # A block that must be kept free counts as one that is needed.
    assert [kv.match(seq, keep_free=free).num_tokens for free in (0, 1)] == [6, 4]
    # Two blocks more than the hit, one block left, and the source of the copy must stay.
    seq = kv.open([1, 2, 3, 4, 5, 6, 7, 8, 9])
    hit = kv.match(seq)
    assert (hit.num_tokens, hit.partial) == (4, None)
    match = kv.explain(seq, hit)
    assert (match.hit_tokens, sum(tokens for _, tokens in match.lost)) == (4, 5)
    assert kv.admit(seq, 9)
    assert seq.num_computed_tokens == 4
    assert kv.take_copies() == []
    kv.free(seq)
    kv.check()


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=16), min_size=1, max_size=12))
def test_what_fits_an_empty_pool_fits_an_idle_one(prompts: list[list[int]]) -> None:
    """Prompts of all lengths up to the pool's, one after another, and the prediction is what happens."""
    kv, predicted = (
        KVManager(4, BLOCK, token_granular=True),
        PagedCache(KVManager(4, BLOCK, token_granular=True)),
    )
    for prompt in prompts:
        match = predicted.match(prompt)
        lease = predicted.commit(prompt)
        predicted.release(lease)
        assert lease.match == match
        hit = kv.match(kv.open(prompt))
        whole = longest_whole_prefix(kv, prompt)
        assert hit.num_tokens == match.hit_tokens >= whole
        # Less than what is there only where every block is needed.
        assert hit.partial is not None or hit.num_tokens == whole
        serve(kv, prompt)
        kv.check()


def longest_whole_prefix(kv: KVManager, prompt: list[int]) -> int:
    """Whole blocks of ``prompt`` that can be found, its last token left out."""
    digests = kv.open(prompt).digests[: (len(prompt) - 1) // BLOCK]
    return len(kv.pools[0].lookup_run(digests)) * BLOCK


def test_a_copy_that_nobody_wants_any_more_is_dropped() -> None:
    kv = KVManager(8, BLOCK, token_granular=True)
    serve(kv, [1, 2, 3, 4, 5, 6])
    seq = kv.open([1, 2, 3, 4, 5, 6, 7])
    assert kv.admit(seq, 7)
    kv.preempt(seq)
    assert kv.take_copies() == []
    kv.check()


@pytest.mark.parametrize("groups", [[SlidingWindow(4)], [FullAttention(), FullAttention()]])
def test_needs_one_group_of_full_attention(groups: list[FullAttention | SlidingWindow]) -> None:
    with pytest.raises(ValueError, match="a single group of full attention"):
        KVManager(8, BLOCK, groups=groups, token_granular=True)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=14), min_size=1, max_size=8))
def test_only_the_last_token_is_ever_lost(prompts: list[list[int]]) -> None:
    """With room for all, a hit is the longest common prefix with anything computed, up to prompt − 1."""
    kv = KVManager(64, BLOCK, token_granular=True)
    for number, prompt in enumerate(prompts):
        longest = 0
        for earlier in prompts[:number]:
            pairs = zip(prompt, earlier, strict=False)
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(prompt), len(earlier)))
            longest = max(longest, same)
        assert kv.match(kv.open(prompt)).num_tokens == min(longest, len(prompt) - 1)
        serve(kv, prompt)
        kv.check()


def test_a_tail_that_a_sibling_still_shares_can_be_hit_and_is_copied_before_it_is_written() -> None:
    kv = KVManager(8, BLOCK, token_granular=True)
    seq = kv.open([1, 2, 3, 4, 5, 6])
    assert kv.admit(seq, 6)
    kv.commit(seq, 6)
    sibling = kv.fork(seq)
    tail = seq.tables[0].ids[1]
    kv.free(seq)
    assert kv.match(kv.open([1, 2, 3, 4, 5, 6, 7])).num_tokens == 6
    sibling.append([9])
    assert kv.reserve(sibling, 7)
    [copy] = kv.take_copies()
    assert (copy.source, copy.destination) == (tail, sibling.tables[0].ids[1])
    kv.commit(sibling, 7)
    assert kv.match(kv.open([1, 2, 3, 4, 5, 6, 7])).num_tokens == 6
    kv.free(sibling)
    kv.check()


@pytest.mark.parametrize(
    "keys",
    [ExtraKeys(cache_salt="a"), ExtraKeys(adapter=Adapter("a")), ExtraKeys(images=(ImageSpan("cat", 1, 2),))],
)
def test_parts_of_blocks_are_not_shared_across_keys(keys: ExtraKeys) -> None:
    for cached, other in ((NO_KEYS, keys), (keys, NO_KEYS)):
        kv = KVManager(8, BLOCK, token_granular=True)
        seq = kv.open([1, 2, 3], cached)
        assert kv.admit(seq, 3)
        kv.commit(seq, 3)
        kv.free(seq)
        assert kv.match(kv.open([1, 2, 3, 4], cached)).num_tokens == 3
        assert kv.match(kv.open([1, 2, 3, 4], other)).num_tokens == 0
        kv.check()
