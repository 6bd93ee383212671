"""The behaviours of vLLM's tests of KV events, under the names of those tests (see this folder's README)."""

from __future__ import annotations

from agentctx_engine.memory import (
    Adapter,
    AllBlocksCleared,
    BlockRemoved,
    BlocksStored,
    ExtraKeys,
    FullAttention,
    KVManager,
    KVSequence,
    SlidingWindow,
)
from agentctx_engine.memory.block_hash import NO_KEYS
from agentctx_engine.memory.kv_events import Event

BLOCK = 4
FULL = FullAttention()


def admit(
    kv: KVManager, tokens: list[int], keys: ExtraKeys = NO_KEYS, *, session: str | None = None
) -> KVSequence:
    seq = kv.open(tokens, keys, session=session)
    assert kv.admit(seq, len(tokens))
    kv.commit(seq, len(tokens))
    return seq


def take(kv: KVManager) -> list[Event]:
    assert kv.events is not None
    return kv.events.take()


def test_kv_cache_events() -> None:
    kv = KVManager(5, BLOCK, events=True)
    heard: list[Event] = []
    assert kv.events is not None
    kv.events.subscribe(heard.append)
    tokens = list(range(5 * BLOCK))
    seq = admit(kv, tokens)
    stored = take(kv)
    assert stored == [BlocksStored(tuple(seq.digests), None, tuple(tokens), BLOCK)]
    assert take(kv) == []

    # Five whole blocks: another request recycles them, last to first.
    kv.free(seq)
    other = admit(kv, list(range(100, 100 + 5 * BLOCK)))
    events = take(kv)
    assert events[:5] == [BlockRemoved(digest) for digest in reversed(seq.digests)]
    assert isinstance(events[5], BlocksStored)
    assert len(events) == 6

    kv.free(other)
    assert take(kv) == []
    assert kv.reset()
    assert take(kv) == [AllBlocksCleared()]
    assert heard == [*stored, *events, AllBlocksCleared()]
    kv.check()


def test_a_hash_that_another_block_holds_is_neither_stored_again_nor_removed() -> None:
    kv = KVManager(4, BLOCK, events=True)
    tokens = list(range(2 * BLOCK))
    first = admit(kv, tokens)
    again = kv.open(tokens, read_cache=False)
    assert kv.admit(again, len(tokens))
    take(kv)
    kv.commit(again, len(tokens))
    assert take(kv) == []
    kv.free(first)
    kv.pools[0].uncache(first.tables[0].ids[0] if first.tables[0].ids else 0)
    assert take(kv) == []
    kv.pools[0].uncache(2)
    assert take(kv) == [BlockRemoved(again.digests[0])]
    kv.check()


def test_null_parent_block_hash() -> None:
    """Block 0 of the window group is gone from the table; the parent is still the hash of the text before."""
    kv = KVManager(20, BLOCK, groups=[SlidingWindow(BLOCK)], events=True)
    seq = kv.open(list(range(4 * BLOCK)))
    assert kv.admit(seq, 2 * BLOCK)
    kv.commit(seq, 2 * BLOCK)
    assert kv.reserve(seq, 4 * BLOCK)
    assert seq.block_table()[0] == 0
    take(kv)
    kv.commit(seq, 4 * BLOCK)
    [event] = take(kv)
    assert event == BlocksStored(
        tuple(seq.digests[2:]), seq.digests[1], tuple(range(2 * BLOCK, 4 * BLOCK)), BLOCK
    )
    kv.check()


def test_null_blocks_are_not_reported() -> None:
    kv = KVManager(20, BLOCK, groups=[SlidingWindow(BLOCK)], events=True)
    seq = kv.open(list(range(4 * BLOCK)))
    assert kv.admit(seq, len(seq), num_external_tokens=3 * BLOCK)
    assert seq.block_table().tolist()[:2] == [0, 0]
    kv.commit(seq, 4 * BLOCK)
    [event] = take(kv)
    assert isinstance(event, BlocksStored)
    assert (event.hashes, event.parent) == (tuple(seq.digests[2:]), seq.digests[1])
    kv.check()


def test_kv_cache_events_with_lora() -> None:
    kv = KVManager(8, BLOCK, events=True)
    tokens = list(range(2 * BLOCK))
    adapted = admit(kv, tokens, ExtraKeys(adapter=Adapter("sql", "/weights/sql")))
    plain = admit(kv, tokens)
    first, second = take(kv)
    assert isinstance(first, BlocksStored)
    assert isinstance(second, BlocksStored)
    assert (first.adapter, first.hashes) == ("sql", tuple(adapted.digests))
    assert (second.adapter, second.hashes) == (None, tuple(plain.digests))
    assert not set(first.hashes) & set(second.hashes)
    kv.check()


def test_block_stored_event_group_idx() -> None:
    kv = KVManager(8, BLOCK, groups=[FULL], events=True)
    admit(kv, list(range(BLOCK)))
    assert [event.group for event in take(kv) if isinstance(event, BlocksStored)] == [0]


def test_block_stored_event_group_idx_multiple_groups() -> None:
    kv = KVManager(20, groups=[FullAttention(8), FullAttention(4)], events=True)
    seq = admit(kv, list(range(16)))
    events = [event for event in take(kv) if isinstance(event, BlocksStored)]
    assert [(event.group, event.block_size, len(event.hashes)) for event in events] == [(0, 8, 2), (1, 4, 4)]
    assert events[0].hashes == (seq.digests[1], seq.digests[3])
    assert events[1].hashes == tuple(seq.digests)


def test_block_removed_event_group_idx() -> None:
    kv = KVManager([2, 3], BLOCK, groups=[FULL, FULL], events=True)
    first = admit(kv, list(range(2 * BLOCK)))
    kv.free(first)
    take(kv)
    # The second group's pool has a block left, so that one block fewer is recycled there.
    admit(kv, list(range(100, 100 + 2 * BLOCK)))
    removed = [event for event in take(kv) if isinstance(event, BlockRemoved)]
    assert removed == [
        BlockRemoved(first.digests[1], 0),
        BlockRemoved(first.digests[0], 0),
        BlockRemoved(first.digests[1], 1),
    ]
    kv.check()


def test_block_stored_event_session_id() -> None:
    kv = KVManager(8, BLOCK, events=True)
    admit(kv, list(range(BLOCK)), session="conversation 7")
    admit(kv, list(range(50, 50 + BLOCK)))
    assert [event.session for event in take(kv) if isinstance(event, BlocksStored)] == [
        "conversation 7",
        None,
    ]


def test_session_id_does_not_affect_prefix_cache_identity() -> None:
    kv = KVManager(8, BLOCK)
    tokens = list(range(2 * BLOCK))
    one = admit(kv, tokens, session="one")
    two = kv.open(tokens, session="two")
    assert one.digests == two.digests
    assert kv.match(two).num_tokens == BLOCK
    kv.check()


def test_emit_cached_block_events() -> None:
    """What a newcomer among the listeners missed can be announced, and nothing else changes."""
    kv = KVManager(8, BLOCK, events=True)
    tokens = list(range(3 * BLOCK))
    seq = admit(kv, tokens)
    follower = kv.open([*tokens, 1], session="later")
    hit = kv.match(follower)
    take(kv)
    before = (kv.pools[0].free_order(), [kv.pools[0].ref_count(block) for block in range(8)])
    kv.announce(follower, hit)
    assert take(kv) == [BlocksStored(tuple(seq.digests), None, tuple(tokens), BLOCK, session="later")]
    assert (kv.pools[0].free_order(), [kv.pools[0].ref_count(block) for block in range(8)]) == before
    kv.check()


def test_emit_cached_block_events_disabled() -> None:
    kv = KVManager(8, BLOCK)
    admit(kv, list(range(2 * BLOCK)))
    follower = kv.open(list(range(2 * BLOCK + 1)))
    kv.announce(follower, kv.match(follower))
    assert kv.events is None
    kv.check()


def test_emit_cached_block_events_zero_cached() -> None:
    kv = KVManager(8, BLOCK, events=True)
    stranger = kv.open(list(range(2 * BLOCK)))
    kv.announce(stranger, kv.match(stranger))
    assert take(kv) == []
