"""Example 4: three samples of one prompt share its blocks until each writes its own next token."""

from __future__ import annotations

import numpy as np

from agentctx_engine.memory import KVManager

kv = KVManager(16, 16)
[pool] = kv.pools
parent = kv.open(np.arange(40, dtype=np.int32))
kv.admit(parent, 40)
kv.commit(parent, 40)
samples = [parent, kv.fork(parent), kv.fork(parent)]


def show(moment: str, blocks: int) -> None:
    tables = [seq.block_table().tolist() for seq in samples]
    counts = {block: pool.ref_count(block) for block in range(blocks)}
    print(f"{moment}: tables {tables}, reference counts {counts}")


show("after the fork", 3)
for number, seq in enumerate(samples):
    seq.append([1000 + number])
    kv.reserve(seq, 41)
for copy in kv.take_copies():
    print(f"copy block {copy.source} to block {copy.destination}")
show("after a token each", 5)
print(f"{pool.num_used_blocks} blocks in use; three private prompts would take 9")
kv.check()
