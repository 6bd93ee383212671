"""SGLang's radix cache behaviours, one test each, under names that can be laid beside SGLang's own.

``README-radix.md`` beside this file says which of them do not apply, and why. Every test ends with the integrity check.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from agentctx_engine.memory.block_hash import BlockHasher, ExtraKeys
from agentctx_engine.memory.kv_events import AllBlocksCleared, BlockRemoved, BlocksStored, EventLog
from agentctx_engine.memory.prefix_cache import Lost
from agentctx_engine.memory.radix_cache import RadixCache, stored_texts
from agentctx_engine.memory.radix_events import page_hashes
from agentctx_engine.memory.radix_tree import Namespace, RadixTree
from agentctx_engine.memory.token_bytes import pack, unpack

EVERYONE = Namespace()


@pytest.fixture
def made() -> Iterator[list[RadixCache]]:
    """Caches of a test; each is checked at its end."""
    caches: list[RadixCache] = []
    yield caches
    for cache in caches:
        cache.check()


@pytest.fixture
def new_cache(made):
    def make(*args, **options) -> RadixCache:
        made.append(RadixCache(*args, **options))
        return made[-1]

    return make


def serve(cache: RadixCache, prompt, output=(), **options) -> int:
    """One whole request; returns its hit."""
    lease = cache.commit(prompt, **options)
    cache.release(lease, output)
    return lease.match.hit_tokens


def evicted(tree: RadixTree, tokens: int) -> list[list[int]]:
    return [unpack(node.key).tolist() for node in tree.evict(tokens)]


# RadixKey and TreeNode -----------------------------------------------------------------------------------------------


def test_token_ids_of_any_integer_type_are_one_key(new_cache) -> None:
    cache = new_cache()
    serve(cache, [1, 2, 3, 4])
    for ids in ([1, 2, 3, 9], np.array([1, 2, 3, 9], dtype=np.int32), np.array([1, 2, 3, 9], dtype=np.int64)):
        assert cache.match(ids).hit_tokens == 3


def test_token_ids_beyond_int32_are_refused(new_cache) -> None:
    cache = new_cache()
    with pytest.raises((OverflowError, ValueError)):
        cache.match([1 << 40])
    with pytest.raises(ValueError, match="int32"):
        cache.match(np.array([1 << 40]))
    with pytest.raises(ValueError, match="one dimension"):
        cache.match(np.zeros((2, 2), dtype=np.int32))


def test_a_node_shows_its_size_and_locks() -> None:
    tree = RadixTree()
    node = tree.insert(pack([1, 2, 3]), None, EVERYONE).node
    tree.lock(node)
    assert repr(node) == "RadixNode(3 tokens, 0 children, 1 locks)"


# RadixCache ----------------------------------------------------------------------------------------------------------


def test_init_refuses_sizes_that_hold_nothing() -> None:
    with pytest.raises(ValueError, match="page_size"):
        RadixCache(0)
    with pytest.raises(ValueError, match="capacity_tokens"):
        RadixCache(16, capacity_tokens=15)
    with pytest.raises(ValueError, match="unknown eviction order"):
        RadixCache(order="random")


def test_reset_empties(new_cache) -> None:
    cache = new_cache(capacity_tokens=100)
    serve(cache, range(10))
    lease = cache.commit(range(5))
    assert not cache.reset(), "refused while a request runs"
    cache.abort(lease)
    assert cache.reset()
    assert cache.match(range(10)).hit_tokens == 0
    assert cache.pool.num_free == 100
    assert cache.stats().requests == 0


def test_insert_and_match_basic(new_cache) -> None:
    """The hit ends at the branch; a stranger finds nothing."""
    cache = new_cache()
    serve(cache, [1, 2, 3, 4, 5])
    assert cache.match([1, 2, 3, 9]).hit_tokens == 3
    assert cache.match([9, 9]).hit_tokens == 0
    assert cache.match([]).hit_tokens == 0


def test_insert_returns_the_length_already_present() -> None:
    tree = RadixTree()
    assert tree.insert(pack([1, 2, 3, 4]), None, EVERYONE).known_tokens == 0
    assert tree.insert(pack([1, 2, 9]), None, EVERYONE).known_tokens == 2
    assert tree.insert(pack([1, 2, 3, 4]), None, EVERYONE).known_tokens == 4
    tree.check()


def test_match_without_reuse_finds_nothing(new_cache) -> None:
    """A request that must compute its whole prompt reads no cache, and writes it all the same."""
    cache = new_cache()
    serve(cache, range(10))
    lease = cache.commit(range(10), limit=0)
    assert lease.match.hit_tokens == 0
    assert lease.match.lost[0] == (Lost.DISABLED, 9)
    cache.release(lease)
    assert cache.match(range(10)).hit_tokens == 9


def test_total_size_counts_shared_prefixes_once(new_cache) -> None:
    cache = new_cache()
    serve(cache, [1, 2, 3, 4])
    serve(cache, [1, 2, 5, 6])
    assert cache.stats().cached_tokens == 6


def test_cache_salt_and_extra_key_form_independent_namespaces(new_cache) -> None:
    """("bc", "a") and ("c", "ab") never meet, nor does a salt that is spelt like an extra key."""
    cache = new_cache()
    spaces = [
        ("bc", "a"),
        ("c", "ab"),
        ("abc", None),
        (None, "abc"),
        (None, None),
        ("", ""),
        ("", None),
        (None, ""),
    ]
    for extra_key, salt in spaces:
        assert serve(cache, range(8), extra_key=extra_key, salt=salt) == 0
    for extra_key, salt in spaces:
        assert serve(cache, range(8), extra_key=extra_key, salt=salt) == 7
    assert len(stored_texts(cache)) == len(spaces)


def test_another_namespace_is_named_as_the_reason(new_cache) -> None:
    cache = new_cache()
    serve(cache, range(8), salt="tenant-a")
    match = cache.match(range(8), salt="tenant-b")
    assert match.stop is Lost.SALT
    assert dict(match.lost) == {Lost.SALT: 7, Lost.WHOLE_PROMPT: 1}


def test_shared_prefix_split(new_cache) -> None:
    """Two branches and their base all match wholly."""
    cache = new_cache()
    serve(cache, [1, 2, 3, 4, 5, 6])
    serve(cache, [1, 2, 3, 7, 8, 9])
    assert cache.match([1, 2, 3, 4, 5, 6, 0]).hit_tokens == 6
    assert cache.match([1, 2, 3, 7, 8, 9, 0]).hit_tokens == 6
    assert cache.match([1, 2, 3, 0]).hit_tokens == 3
    assert len(list(cache.tree.nodes())) == 3


def test_split_keeps_the_total_size(new_cache) -> None:
    cache = new_cache()
    serve(cache, range(100))
    before = cache.stats().cached_tokens
    lease = cache.commit([*range(50), 999])
    assert cache.stats().cached_tokens == before
    cache.abort(lease)


def test_a_lookup_changes_nothing(new_cache) -> None:
    cache = new_cache(capacity_tokens=100)
    serve(cache, [1, 2, 3, 4])
    serve(cache, [5, 6, 7, 8])
    before = [(node.key, node.last_used, node.hits) for node in cache.tree.nodes()]
    cache.match([1, 2, 9])
    assert [(node.key, node.last_used, node.hits) for node in cache.tree.nodes()] == before


@pytest.mark.parametrize("page", [1, 4, 16])
def test_page_alignment(new_cache, page: int) -> None:
    cache = new_cache(page)
    serve(cache, range(50))
    whole = 50 // page * page
    assert cache.stats().cached_tokens == whole
    assert cache.match([*range(50), 999]).hit_tokens == whole
    assert cache.match([*range(40), 999]).hit_tokens == 40 // page * page
    assert cache.match(range(48)).hit_tokens == 47 // page * page


def test_paged_match_truncates_unaligned_key(new_cache) -> None:
    cache = new_cache(4)
    serve(cache, range(16))
    match = cache.match([*range(10), 99, 98])
    assert match.hit_tokens == 8
    assert dict(match.lost) == {Lost.BLOCK_ROUNDING: 2, Lost.FIRST_DIFFERENCE: 2}
    assert match.stop is Lost.BLOCK_ROUNDING


def test_paged_page_boundary_mismatch(new_cache) -> None:
    """A difference in the first token of a page costs no rounding."""
    cache = new_cache(4)
    serve(cache, range(16))
    match = cache.match([*range(8), 99, 9, 10, 11])
    assert match.hit_tokens == 8
    assert dict(match.lost) == {Lost.FIRST_DIFFERENCE: 4}


def test_paged_cache_finished_unaligned_tail_freed(new_cache) -> None:
    cache = new_cache(4, capacity_tokens=64)
    serve(cache, range(10), range(100, 104))
    assert cache.stats().cached_tokens == 12  # 10 + 3 computed, in whole pages
    assert cache.pool.num_free == 16 - 3


# Locks, sizes and eviction -------------------------------------------------------------------------------------------


def test_inc_dec_lock_ref_moves_tokens_between_evictable_and_protected(new_cache) -> None:
    cache = new_cache()
    serve(cache, range(10))
    assert (cache.evictable_tokens, cache.protected_tokens) == (10, 0)
    lease = cache.commit([*range(6), 99])
    assert (cache.evictable_tokens, cache.protected_tokens) == (4, 6)
    twin = cache.commit([*range(8), 99])
    assert (cache.evictable_tokens, cache.protected_tokens) == (2, 8)
    cache.abort(lease)
    assert (cache.evictable_tokens, cache.protected_tokens) == (2, 8)
    cache.abort(twin)
    assert (cache.evictable_tokens, cache.protected_tokens) == (10, 0)


def test_unlocking_twice_is_surfaced() -> None:
    tree = RadixTree()
    node = tree.insert(pack([1, 2]), None, EVERYONE).node
    tree.lock(node)
    tree.unlock(node)
    with pytest.raises(RuntimeError, match="unlocked twice"):
        tree.unlock(node)


def test_a_lease_is_released_once(new_cache) -> None:
    cache = new_cache()
    lease = cache.commit([1, 2, 3])
    cache.release(lease)
    for again in (cache.release, cache.abort, cache.checkpoint):
        with pytest.raises(RuntimeError, match="released already"):
            again(lease)


def test_evict_respects_lock_ref(new_cache) -> None:
    cache = new_cache(capacity_tokens=100)
    serve(cache, [1, 2, 3, 4])
    lease = cache.commit([1, 2, 3, 4, 5])
    serve(cache, [7, 8, 9])
    assert cache.evict(100) == 3
    assert cache.match([1, 2, 3, 4, 0]).hit_tokens == 4
    cache.abort(lease)


def test_evict_empty_tree(new_cache) -> None:
    cache = new_cache(capacity_tokens=10)
    assert cache.evict(5) == 0


def test_evict_frees_at_least_what_was_asked_in_whole_leaves(new_cache) -> None:
    cache = new_cache(capacity_tokens=100)
    serve(cache, range(40))
    assert cache.evict(1) == 40
    assert cache.pool.num_free == 100


def test_evict_cascade_parent_becomes_a_leaf() -> None:
    tree = RadixTree()
    tree.insert(pack([1, 2]), None, EVERYONE)
    tree.insert(pack([1, 2, 3, 4]), None, EVERYONE)
    tree.insert(pack([1, 2, 5]), None, EVERYONE)
    assert evicted(tree, 100) == [[3, 4], [5], [1, 2]]
    assert not tree.roots
    tree.check()


def test_partial_match_keeps_unmatched_suffix_lru_position() -> None:
    """A text that uses the front of a run does not refresh its rest, unless the tree is told to."""
    for split_refresh, first in (("used", [3, 4]), ("run", [5, 6, 7, 8])):
        tree = RadixTree(split_refresh=split_refresh)
        tree.insert(pack([1, 2, 3, 4]), None, EVERYONE)
        tree.insert(pack([5, 6, 7, 8]), None, EVERYONE)
        tree.insert(pack([1, 2, 9]), None, EVERYONE)
        assert evicted(tree, 1) == [first]
        tree.check()


def test_evicted_text_is_named_as_the_reason(new_cache) -> None:
    cache = new_cache(capacity_tokens=10)
    serve(cache, range(8))
    serve(cache, range(100, 108))
    match = cache.match([*range(8), 55])
    assert match.stop is Lost.EVICTED
    assert dict(match.lost) == {Lost.EVICTED: 8, Lost.FIRST_DIFFERENCE: 1}


def test_remembered_text_is_bounded(new_cache) -> None:
    cache = new_cache(capacity_tokens=10, remember_tokens=16)
    for first in range(0, 1000, 10):
        serve(cache, range(first, first + 8))
    assert cache._remembered.num_tokens <= 16
    assert cache.match(range(8)).stop is Lost.FIRST_DIFFERENCE  # long forgotten
    assert cache.match(range(980, 988)).stop is Lost.EVICTED


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("lru", [[3], [1], [2]]),
        ("lfu", [[3], [2], [1]]),
        ("fifo", [[1], [2], [3]]),
        ("priority", [[2], [3], [1]]),
        ("slru", [[3], [1], [2]]),
    ],
)
def test_evict_policy(order, expected) -> None:
    """1 was first and is used most, 2 was used last, 3 once; 1 has the highest priority, 2 the lowest."""
    tree = RadixTree(order=order)
    for token, priority in ((1, 9), (2, 0), (3, 5), (1, 9), (1, 9), (2, 0)):
        tree.insert(pack([token]), None, EVERYONE, priority=priority)
    assert evicted(tree, 3) == expected
    tree.check()


def test_evict_policy_tie_breaks_by_last_use() -> None:
    for order in ("lfu", "priority", "slru"):
        tree = RadixTree(order=order)
        for token in (1, 2, 3, 1):
            tree.insert(pack([token]), None, EVERYONE)
        tree.insert(pack([2]), None, EVERYONE)
        tree.insert(pack([3]), None, EVERYONE)
        assert evicted(tree, 3) == [[1], [2], [3]], order


def test_slru_promotion_threshold() -> None:
    """A node used twice outlives every node used once, however recent."""
    tree = RadixTree(order="slru")
    for token in (1, 1, 2, 3):
        tree.insert(pack([token]), None, EVERYONE)
    assert evicted(tree, 3) == [[2], [3], [1]]


def test_priority_is_passed_to_the_whole_path() -> None:
    tree = RadixTree(order="priority")
    tree.insert(pack([1, 2]), None, EVERYONE, priority=0)
    tree.insert(pack([7, 8]), None, EVERYONE, priority=1)
    tree.insert(pack([1, 2, 3]), None, EVERYONE, priority=5)
    assert evicted(tree, 3) == [[7, 8], [3]]


# Requests ------------------------------------------------------------------------------------------------------------


def test_prev_prefix_len_overlap_is_freed_once(new_cache) -> None:
    """Two requests computed the same text at once: the second's pages go back, and it reads the first's from then on."""
    cache = new_cache(capacity_tokens=100)
    first, second = cache.commit(range(10)), cache.commit(range(10))
    assert cache.pool.num_free == 80
    cache.checkpoint(first)
    cache.checkpoint(second)
    assert cache.pool.num_free == 90
    assert second.pages.tolist() == first.pages.tolist()
    cache.release(first)
    cache.release(second)
    assert cache.pool.num_free == 90


def test_prev_prefix_len_partial_overlap(new_cache) -> None:
    cache = new_cache(capacity_tokens=100)
    first, second = cache.commit(range(10)), cache.commit([*range(6), 77, 78])
    cache.checkpoint(first)
    own = second.pages[6:].tolist()
    cache.checkpoint(second)
    assert second.pages.tolist() == first.pages[:6].tolist() + own
    assert cache.pool.num_free == 100 - 12
    cache.abort(first)
    cache.abort(second)


def test_cache_finished_req_insert(new_cache) -> None:
    """Prompt and output are separate nodes: the output can go and the prompt stay."""
    cache = new_cache(capacity_tokens=100)
    serve(cache, [1, 2, 3], [7, 8, 9])
    assert cache.match([1, 2, 3, 7, 8, 9]).hit_tokens == 5, "the last output token was never computed"
    assert cache.evict(1) == 2
    assert cache.match([1, 2, 3, 7]).hit_tokens == 3


def test_cache_finished_req_strips_thinking(new_cache) -> None:
    """A caller that keeps no reasoning ends the request without its output: nothing behind the prompt is reachable."""
    cache = new_cache(capacity_tokens=100)
    lease = cache.commit([1, 2, 3])
    cache.checkpoint(lease)
    cache.extend(lease, [50, 51, 52])
    cache.abort(lease)
    assert cache.match([1, 2, 3, 50, 51]).hit_tokens == 3
    assert cache.pool.num_free == 97


def test_cache_finished_req_no_insert(new_cache) -> None:
    """An aborted or retracted request leaves nothing and gives back every page."""
    cache = new_cache(capacity_tokens=100)
    cache.abort(cache.commit(range(20)))
    assert cache.stats().cached_tokens == 0
    assert cache.pool.num_free == 100


def test_cache_unfinished_req(new_cache) -> None:
    """After each chunk others can hit what was computed; the request keeps its lock on it."""
    cache = new_cache(4, capacity_tokens=64)
    lease = cache.commit(range(20))
    cache.checkpoint(lease, 10)
    assert cache.match([*range(20), 99]).hit_tokens == 8
    assert (cache.protected_tokens, cache.evictable_tokens) == (8, 0)
    cache.checkpoint(lease, 20)
    assert cache.match([*range(20), 99]).hit_tokens == 20
    assert cache.evict(100) == 0
    cache.release(lease)
    assert cache.evictable_tokens == 20


def test_a_request_that_inserts_bit_by_bit_counts_as_one_use(new_cache) -> None:
    cache = new_cache(order="lfu")
    lease = cache.commit(range(8))
    for computed in (2, 4, 6, 8):
        cache.checkpoint(lease, computed)
    cache.release(lease)
    assert {node.hits for node in cache.tree.nodes()} == {1}


def test_a_refused_request_changes_nothing(new_cache) -> None:
    cache = new_cache(capacity_tokens=20)
    serve(cache, range(10))
    lease = cache.commit([*range(10), 50])
    before = (cache.pool.num_free, cache.evictable_tokens, cache.protected_tokens, stored_texts(cache))
    with pytest.raises(MemoryError, match="needs 10 more pages of 1; 9"):
        cache.commit(range(100, 110))
    assert (
        cache.pool.num_free,
        cache.evictable_tokens,
        cache.protected_tokens,
        stored_texts(cache),
    ) == before
    cache.abort(lease)


def test_what_a_request_hits_makes_no_room_for_it(new_cache) -> None:
    cache = new_cache(capacity_tokens=10)
    serve(cache, range(6))
    with pytest.raises(MemoryError):
        cache.commit([*range(6), *range(50, 55)])  # 6 + 5 > 10, though 6 could be evicted
    assert serve(cache, [*range(6), *range(50, 54)]) == 6


def test_reserve_gates_admission(new_cache) -> None:
    cache = new_cache(capacity_tokens=10)
    with pytest.raises(MemoryError):
        cache.commit(range(6), reserve_tokens=5)
    cache.abort(cache.commit(range(6), reserve_tokens=4))


def test_output_for_which_there_is_no_memory_is_left_out(new_cache) -> None:
    cache = new_cache(capacity_tokens=10)
    assert serve(cache, range(8), range(50, 60)) == 0
    assert cache.match([*range(8), *range(50, 60)]).hit_tokens == 10


def test_fork_shares_the_tree_and_copies_the_rest(new_cache) -> None:
    cache = new_cache(4, capacity_tokens=64)
    lease = cache.commit(range(10))
    cache.checkpoint(lease)
    twin, copies = cache.fork(lease)
    assert twin.pages[:2].tolist() == lease.pages[:2].tolist()
    assert copies == [(int(lease.pages[2]), int(twin.pages[2]))]
    cache.extend(twin, [70, 71])
    cache.release(lease)
    cache.release(twin)
    assert cache.match([*range(10), 70, 71, 0]).hit_tokens == 12


# Events --------------------------------------------------------------------------------------------------------------


def test_kv_events_store_remove_and_clear(new_cache) -> None:
    """One hash a page, none for what is there already, removal on eviction."""
    log = EventLog()
    cache = new_cache(2, capacity_tokens=64, events=log)
    serve(cache, [1, 2, 3, 4])
    (stored,) = log.take()
    assert isinstance(stored, BlocksStored)
    assert (stored.parent, stored.token_ids, stored.block_size) == (None, (1, 2, 3, 4), 2)
    serve(cache, [1, 2, 3, 4])
    assert log.take() == [], "a text that is known already is quiet"
    serve(cache, [1, 2, 3, 4, 5, 6])
    (longer,) = log.take()
    assert (longer.parent, longer.token_ids) == (stored.hashes[-1], (5, 6))
    cache.evict(100)
    removed = [event.hash for event in log.take() if isinstance(event, BlockRemoved)]
    assert removed == [longer.hashes[0], stored.hashes[1], stored.hashes[0]]
    cache.reset()
    assert log.take() == [AllBlocksCleared()]


def test_kv_events_parentage_survives_a_split(new_cache) -> None:
    log = EventLog()
    cache = new_cache(2, events=log)
    serve(cache, [1, 2, 3, 4, 5, 6])
    (stored,) = log.take()
    serve(cache, [1, 2, 3, 4, 7, 8])
    (branch,) = log.take()
    assert branch.parent == stored.hashes[1]
    assert branch.token_ids == (7, 8)


def test_hash_values_are_those_of_a_paged_cache_and_kept_across_splits(new_cache) -> None:
    """Position-aware (repeated tokens differ), apart by salt and extra key, the same after a split."""
    log = EventLog()
    cache = new_cache(2, events=log)
    text = [5, 5, 5, 5, 5, 5]
    serve(cache, text)
    serve(cache, [5, 5, 9, 9])
    longest = max(cache.tree.nodes(), key=lambda node: len(node.prefix()))
    hashes = page_hashes(longest)
    assert hashes == BlockHasher().chain(text, 2)
    assert len(set(hashes)) == 3
    log.take()
    serve(cache, text, salt="s")
    serve(cache, text, extra_key="a")
    salted, keyed = log.take()
    assert not set(salted.hashes) & set(keyed.hashes)
    assert not set(salted.hashes) & set(hashes)
    salt_part = ExtraKeys(cache_salt="s").single_blocks(2, 6)
    assert list(salted.hashes) == BlockHasher().chain(text, 2, single=salt_part)


def test_memory_stays_below_twice_the_text(new_cache) -> None:
    """Many inserts with shared prefixes: what is kept is close to the tokens themselves, not to their sum."""
    cache = new_cache()
    base = np.random.default_rng(0).integers(0, 50_000, 20_000).astype(np.int32)
    for end in range(1000, 20_001, 100):
        serve(cache, base[:end])
    kept = sum(len(node.key) for node in cache.tree.nodes())
    assert kept == 4 * 20_000
    assert cache.stats().prompt_tokens > 50 * 20_000


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_output_without_memory_is_left_out_and_the_rest_is_kept(new_cache, page_size: int) -> None:
    """Eight tokens of prompt and sixteen of memory: of a long output eight tokens stay, whatever the page."""
    cache = new_cache(page_size, capacity_tokens=16)
    prompt, output = list(range(8)), list(range(100, 140))
    serve(cache, prompt, output)
    assert cache.match([*prompt, *output]).hit_tokens == 16
    assert cache.pool.num_free == 0
    # What can be evicted is room too, but for a text that is in use.
    held = cache.commit([*prompt, 60])  # takes a page of its own for the token behind its hit
    serve(cache, [50], output)
    assert cache.match([*prompt, 1]).hit_tokens == 8
    assert cache.match([50, *output]).hit_tokens == 8 - page_size
    cache.release(held)


@pytest.mark.parametrize("page_size", [1, 2])
def test_pages_of_a_text_in_order(new_cache, page_size: int) -> None:
    """Its last token included: what can be copied out, not what a prompt may reuse."""
    cache = new_cache(page_size, capacity_tokens=24)
    lease = cache.commit(list(range(6)))
    pages = lease.pages.tolist()
    cache.release(lease)
    serve(cache, [0, 1, 2, 3, 9, 9], salt="other")
    branch = cache.commit([0, 1, 2, 3, 50, 51])
    own = branch.pages.tolist()
    cache.release(branch)
    assert cache.pages_of(list(range(6))).tolist() == pages
    assert cache.pages_of([*range(6), 7]).tolist() == pages
    assert cache.pages_of([0, 1, 2, 3, 50, 51]).tolist() == own
    assert own[: 4 // page_size] == pages[: 4 // page_size]
    assert cache.pages_of([0, 1, 2]).tolist() == pages[: 3 // page_size]
    assert cache.pages_of([7]).tolist() == cache.pages_of([0, 1], salt="third").tolist() == []
    assert len(cache.pages_of([0, 1, 2, 3], salt="other")) == 4 // page_size


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_output_takes_the_place_of_what_can_be_evicted(new_cache, page_size: int) -> None:
    cache = new_cache(page_size, capacity_tokens=16)
    serve(cache, [1, 2, 3, 4])
    serve(cache, [5, 6, 7, 8])
    prompt, output = [9, 10, 11, 12], list(range(100, 140))
    serve(cache, prompt, output)
    assert cache.match([*prompt, *output]).hit_tokens == 16
    assert cache.match([1, 2, 3, 4, 0]).hit_tokens == cache.match([5, 6, 7, 8, 0]).hit_tokens == 0


def test_stored_texts_are_those_of_the_leaves(new_cache) -> None:
    cache = new_cache()
    for tokens in ([1, 2, 3], [1, 2, 4], [1, 2], [7]):
        serve(cache, tokens)
    serve(cache, [1, 2, 3, 4], salt="other")
    texts = {namespace: sorted(found) for namespace, found in stored_texts(cache).items()}
    assert texts == {EVERYONE: [[1, 2, 3], [1, 2, 4], [7]], Namespace(None, "other"): [[1, 2, 3, 4]]}
