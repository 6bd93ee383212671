"""The host tier: evicted blocks move there, come back on a hit, and copies are ordered so that none reads too late."""

from __future__ import annotations

import pytest

from agentctx_engine.memory import BlockRemoved, BlocksStored, KVManager, KVSequence, Lost
from agentctx_engine.memory.errors import IntegrityError

BLOCK = 4


def text(count: int, first: int) -> list[int]:
    return list(range(first, first + count))


def serve(kv: KVManager, tokens: list[int]) -> KVSequence:
    seq = kv.open(tokens)
    assert kv.admit(seq, len(tokens))
    kv.take_transfers()
    kv.commit(seq, len(tokens))
    kv.free(seq)
    return seq


def test_an_evicted_prefix_comes_back() -> None:
    kv = KVManager(4, BLOCK, host_blocks=8)
    host = kv.host
    assert host is not None
    a = serve(kv, text(16, 100))
    b = kv.open(text(16, 200))
    assert kv.admit(b, 16)
    transfers = kv.take_transfers()
    # a's blocks 0 … 3 are evicted tail first.
    assert [(copy.source, copy.destination) for copy in transfers.offloads] == [
        (3, 0),
        (2, 1),
        (1, 2),
        (0, 3),
    ]
    assert (transfers.loads, transfers.copies) == ([], [])
    kv.commit(b, 16)
    kv.free(b)
    assert host.counters.offloaded_blocks == 4

    again = kv.open([*a.tokens.tolist(), 1])
    hit = kv.match(again)
    assert hit.num_tokens == 16
    assert hit.blocks[0] == [-1 - 3, -1 - 2, -1 - 1, -1 - 0]
    # Four to bring back and one for the new token: a block too many.
    assert not kv.admit(again, 17, hit)
    shorter = kv.open(a.tokens[:13].tolist())
    hit = kv.match(shorter)
    assert hit.num_tokens == 12
    assert kv.admit(shorter, 13, hit)
    transfers = kv.take_transfers()
    assert {(copy.source, copy.destination) for copy in transfers.loads} == set(
        zip([3, 2, 1], shorter.tables[0].ids[:3], strict=True)
    )
    # b's blocks had to go for them, in the same breath, to host blocks that nobody was loading from.
    assert len(transfers.offloads) == 4
    assert not {copy.destination for copy in transfers.offloads} & {copy.source for copy in transfers.loads}
    assert host.counters.loaded_blocks == 3
    assert kv.stats is not None
    assert kv.stats.host_hit_tokens == 12
    kv.free(shorter)
    kv.check()


def test_a_block_is_in_one_tier_only() -> None:
    kv = KVManager(2, BLOCK, host_blocks=4)
    host = kv.host
    assert host is not None
    a = serve(kv, text(8, 100))
    serve(kv, text(8, 200))
    serve(kv, [*a.tokens[:4].tolist(), 1])
    where = [
        (kv.pools[0].lookup(digest) is not None, host.lookup(digest, 0) is not None) for digest in a.digests
    ]
    assert where == [(True, False), (False, True)]
    kv.check()


def test_the_host_forgets_its_oldest() -> None:
    kv = KVManager(2, BLOCK, host_blocks=2)
    a, b = serve(kv, text(8, 100)), serve(kv, text(8, 200))
    serve(kv, text(8, 300))
    host = kv.host
    assert host is not None
    assert [host.lookup(digest, 0) is not None for digest in (*a.digests, *b.digests)] == [
        False,
        False,
        True,
        True,
    ]
    assert host.pool.counters.evicted_blocks == 2
    seq = kv.open(text(8, 100))
    match = kv.explain(seq, kv.match(seq))
    # The whole-prompt rule leaves one block of two to reuse, and that is gone.
    assert match.lost == ((Lost.EVICTED, 4), (Lost.BLOCK_ROUNDING, 3), (Lost.WHOLE_PROMPT, 1))
    kv.check()


def test_a_load_that_is_called_off_stays_on_the_host() -> None:
    """Admitted, preempted and evicted before any copy ran: the contents never left, and no copy must run."""
    kv = KVManager(2, BLOCK, host_blocks=4)
    host = kv.host
    assert host is not None
    a = serve(kv, text(8, 100))
    serve(kv, text(8, 200))
    seq = kv.open([*a.tokens[:4].tolist(), 1])
    assert kv.match(seq).num_tokens == 4
    assert kv.admit(seq, 5)
    kv.preempt(seq)
    stranger = kv.open(text(8, 300))
    assert kv.admit(stranger, 8)
    transfers = kv.take_transfers()
    assert transfers.loads == []
    assert host.lookup(a.digests[0], 0) is not None
    assert host.counters.loaded_blocks == 0
    kv.free(stranger)
    kv.check()


def test_when_every_host_block_waits_for_a_load_the_evicted_is_dropped() -> None:
    kv = KVManager(2, BLOCK, host_blocks=1)
    host = kv.host
    assert host is not None
    a = serve(kv, text(4, 100))
    serve(kv, text(8, 200))
    seq = kv.open([*a.tokens.tolist(), 1])
    assert kv.match(seq).num_tokens == 4
    assert kv.admit(seq, 5)
    transfers = kv.take_transfers()
    assert len(transfers.loads) == 1
    assert transfers.offloads == []
    assert host.counters.dropped_blocks == 2
    kv.free(seq)
    kv.check()


def test_events_name_the_tier() -> None:
    kv = KVManager(1, BLOCK, host_blocks=1, events=True)
    assert kv.events is not None
    a = serve(kv, text(4, 100))
    kv.events.take()
    serve(kv, text(4, 200))
    stored, removed, *_ = kv.events.take()
    assert stored == BlocksStored((a.digests[0],), None, (), BLOCK, medium="host")
    assert removed == BlockRemoved(a.digests[0], 0, "device")
    serve(kv, text(4, 300))
    assert BlockRemoved(a.digests[0], 0, "host") in kv.events.take()
    kv.check()


def test_reset_forgets_both_tiers() -> None:
    kv = KVManager(2, BLOCK, host_blocks=2)
    host = kv.host
    assert host is not None
    a = serve(kv, text(8, 100))
    serve(kv, text(8, 200))
    seq = kv.open([*a.tokens[:4].tolist(), 1])
    assert kv.admit(seq, 5)
    kv.free(seq)
    assert not kv.reset(), "a load is waiting to be taken"
    kv.take_transfers()
    assert kv.reset()
    assert host.pool.num_findable_hashes == kv.pools[0].num_findable_hashes == 0
    kv.check()


def test_copies_alone_are_not_the_whole_story() -> None:
    kv = KVManager(2, BLOCK, host_blocks=2)
    with pytest.raises(ValueError, match="use take_transfers"):
        kv.take_copies()


@pytest.mark.parametrize("other", [-1, 1])
def test_the_check_of_queued_offloads_can_go_red(other: int) -> None:
    kv = KVManager(4, BLOCK, host_blocks=8)
    host = kv.host
    assert host is not None
    serve(kv, text(16, 100))
    assert kv.admit(kv.open(text(16, 200)), 16)
    host.check()
    block, copy = next((block, copy) for block, copy in host._offloads.items() if block == 1)
    host._offloads[block] = copy._replace(destination=copy.destination + other)
    with pytest.raises(IntegrityError, match="under another block than it fills"):
        host.check()
