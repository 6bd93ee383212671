"""Example 7: finished blocks wait in the free queue, and the longest unused is evicted first."""

from __future__ import annotations

from agentctx_engine.memory import BlockRemoved, KVManager, KVSequence

BLOCK = 4
kv = KVManager(6, BLOCK, events=True)
[pool] = kv.pools
names: dict[bytes, str] = {}


def run(*blocks: str) -> KVSequence:
    """Run a request whose text is these named blocks."""
    seq = kv.open([100 * ord(name[0]) + 10 * int(name[1]) + i for name in blocks for i in range(BLOCK)])
    names.update(
        {digest: name for digest, name in zip(seq.digests, blocks, strict=True) if digest not in names}
    )
    kv.admit(seq, len(seq))
    kv.commit(seq, len(seq))
    return seq


kv.free(run("a1", "a2", "a3"))
print("A finishes; free queue", pool.free_order())
kv.free(run("b1", "b2"))
print("B finishes; free queue", pool.free_order())
c = run("a1", "a2", "c3")
print("C runs in blocks", c.block_table().tolist(), "(a1 and a2 are hits)")
assert kv.events is not None
kv.events.take()
d = run("d1", "d2", "d3")
evicted = [names[event.hash] for event in kv.events.take() if isinstance(event, BlockRemoved)]
print("D runs in blocks", d.block_table().tolist(), "and evicts", ", ".join(evicted))
kv.free(c)
print("C finishes; free queue", pool.free_order())
kv.check()
