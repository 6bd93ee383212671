"""Lesson example 1: one contiguous region per sequence wastes memory inside regions and between them."""

from __future__ import annotations

from agentctx_engine.memory import FirstFitAllocator, ReserveMaximum

POOL = 8192


def test_reserving_the_maximum_leaves_most_of_the_pool_unused() -> None:
    pool = ReserveMaximum(POOL, 2048)
    regions = [pool.admit(tokens) for tokens in (300, 1200, 150, 700, 500)]
    assert [region and region.start for region in regions] == [0, 2048, 4096, 6144, None]
    assert (pool.num_reserved_slots, pool.num_tokens) == (8192, 2350)
    assert f"{100 * pool.utilisation:.1f}" == "28.7"
    assert pool.gaps == []
    pool.check()


def test_exact_reservations_leave_gaps_that_are_too_small() -> None:
    pool = FirstFitAllocator(POOL)
    regions = [pool.allocate(slots) for slots in (1500, 600, 1800, 400, 2000, 1000)]
    for index in (1, 3):
        region = regions[index]
        assert region is not None
        pool.free(region)
    assert pool.num_free_slots == 1892
    assert pool.gaps == [600, 400, 892]
    assert pool.allocate(900) is None
    pool.check()
