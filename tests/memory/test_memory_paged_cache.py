"""PagedCache behind the PrefixCache interface."""

from __future__ import annotations

import pytest

from agentctx_engine.memory import KVManager, Lost, Match, OutOfBlocks, PagedCache, PrefixCache


def test_it_is_a_prefix_cache() -> None:
    cache: PrefixCache = PagedCache.of_size(8, 4)
    lease = cache.commit([1, 2, 3, 4, 5])
    assert lease.match.hit_tokens == 0
    cache.release(lease, [6, 7, 8])
    # The reply's last token was sampled and never read.
    assert cache.match([1, 2, 3, 4, 5, 6, 7, 8, 9]) == Match(
        4, ((Lost.BLOCK_ROUNDING, 3), (Lost.FIRST_DIFFERENCE, 2)), Lost.BLOCK_ROUNDING
    )


def test_match_changes_nothing() -> None:
    cache = PagedCache.of_size(8, 4)
    cache.release(cache.commit(range(20)))
    before = cache.manager.pools[0].free_order(), cache.stats()
    for _ in range(3):
        assert cache.match(range(20)).hit_tokens == 16
        assert cache.match(range(20), salt="a").hit_tokens == 0
    assert (cache.manager.pools[0].free_order(), cache.stats()) == before
    cache.manager.check()


def test_a_prompt_that_cannot_fit_changes_nothing() -> None:
    cache = PagedCache.of_size(4, 4)
    cache.release(cache.commit(range(10)))
    before = cache.manager.pools[0].free_order(), cache.stats()
    with pytest.raises(OutOfBlocks) as raised:
        cache.commit(range(17))
    assert isinstance(raised.value, MemoryError)
    assert (cache.manager.pools[0].free_order(), cache.stats()) == before
    cache.manager.check()


def test_a_reply_that_does_not_fit_is_not_cached() -> None:
    cache = PagedCache.of_size(3, 4)
    lease = cache.commit(range(8))
    cache.release(lease, range(100, 120))
    assert cache.match([*range(8), 100, 101, 102, 103, 9]).hit_tokens == 8
    assert cache.manager.pools[0].num_used_blocks == 0
    cache.manager.check()


def test_memory_without_limit_never_evicts() -> None:
    cache = PagedCache.of_size(None, 4)
    for number in range(40):
        cache.release(cache.commit(range(1000 * number, 1000 * number + 400)))
    stats = cache.stats()
    assert (stats.capacity_tokens, stats.evicted_tokens, stats.cached_tokens) == (None, 0, 16_000)
    assert cache.match(range(400)).hit_tokens == 396
    cache.manager.check()


def test_stats() -> None:
    cache = PagedCache(KVManager(8, 4, null_block=True))
    cache.release(cache.commit(range(12)))
    lease = cache.commit([*range(12), 99])
    cache.release(lease)
    cache.release(cache.commit(range(100, 128)))
    stats = cache.stats()
    assert (stats.requests, stats.prompt_tokens, stats.hit_tokens) == (3, 53, 12)
    assert (stats.capacity_tokens, stats.cached_tokens, stats.evicted_tokens) == (28, 28, 12)


def test_leases_run_side_by_side() -> None:
    cache = PagedCache.of_size(32, 4)
    first = cache.commit(range(20))
    second = cache.commit([*range(16), 99, 98])
    assert second.match.hit_tokens == 16
    cache.release(first, [1, 2, 3])
    third = cache.commit([*range(20), 1, 2, 3])
    assert third.match.hit_tokens == 20
    cache.release(second)
    cache.release(third)
    assert cache.manager.pools[0].num_used_blocks == 0
    cache.manager.check()


@pytest.mark.parametrize(("remember_tokens", "texts"), [(None, 4), (32, 2), (160, 10)])
def test_what_was_evicted_is_remembered_for_a_while(remember_tokens: int | None, texts: int) -> None:
    """Of a pool of 16 tokens four times as much by default: behind that, text counts as never seen."""
    cache = PagedCache(KVManager(4, 4, remember_tokens=remember_tokens))
    for number in range(20):
        cache.release(cache.commit(range(100 * number, 100 * number + 16)))
    stops = [cache.match([*range(100 * number, 100 * number + 16), 7]).stop for number in range(19)]
    assert stops == [Lost.FIRST_DIFFERENCE] * (20 - texts) + [Lost.EVICTED] * (texts - 1)
