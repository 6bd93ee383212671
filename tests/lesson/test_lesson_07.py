"""Lesson example 7: the order in which cached blocks are given up."""

from __future__ import annotations

from agentctx_engine.memory import BlockRemoved, KVManager, KVSequence

BLOCK = 4


def text(*names: str) -> list[int]:
    """A whole block of tokens for each name."""
    return [100 * ord(name[0]) + 10 * int(name[1]) + i for name in names for i in range(BLOCK)]


def run(kv: KVManager, *names: str) -> KVSequence:
    seq = kv.open(text(*names))
    assert kv.admit(seq, len(seq))
    kv.commit(seq, len(seq))
    return seq


def test_least_recently_used_blocks_go_first() -> None:
    kv = KVManager(6, BLOCK, events=True)
    [pool] = kv.pools
    assert kv.events is not None

    kv.free(run(kv, "a1", "a2", "a3"))
    assert pool.free_order() == [3, 4, 5, 2, 1, 0]
    kv.free(run(kv, "b1", "b2"))
    assert pool.free_order() == [5, 2, 1, 0, 4, 3]

    c = run(kv, "a1", "a2", "c3")
    assert c.block_table().tolist() == [0, 1, 5]
    hash_of = {name: digest for names in (["a1", "a2", "a3"], ["b1", "b2"]) for name, digest in zip(names, kv.open(text(*names)).digests, strict=True)}  # fmt: skip
    block_of = {name: pool.lookup(digest) for name, digest in hash_of.items()}
    kv.events.take()

    d = run(kv, "d1", "d2", "d3")
    evicted = [event.hash for event in kv.events.take() if isinstance(event, BlockRemoved)]
    assert evicted == [hash_of["a3"], hash_of["b2"], hash_of["b1"]]
    assert [block_of[name] for name in ("a3", "b2", "b1")] == d.block_table().tolist() == [2, 4, 3]

    kv.free(c)
    assert pool.free_order() == [5, 1, 0]
    kv.check()


def test_blocks_without_a_hash_go_to_the_front() -> None:
    kv = KVManager(6, BLOCK)
    seq = kv.open([*text("a1", "a2"), 7])
    assert kv.admit(seq, len(seq))
    kv.commit(seq, len(seq))
    kv.free(seq)
    assert kv.pools[0].free_order() == [2, 3, 4, 5, 1, 0]
    kv.check()
