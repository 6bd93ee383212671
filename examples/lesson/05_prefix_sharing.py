"""Example 5: the second request with the same system prompt computes only what differs."""

from __future__ import annotations

from agentctx_engine.memory import KVManager

SYSTEM = list(range(1000, 1070))  # 70 tokens
QUESTIONS = (list(range(5000, 5020)), list(range(6000, 6033)))  # 20 and 33 tokens

kv = KVManager(64, 16)
unshared = 0
for number, question in enumerate(QUESTIONS, start=1):
    seq = kv.open(SYSTEM + question)
    kv.admit(seq, len(seq))
    reused = seq.num_computed_tokens
    kv.commit(seq, len(seq))
    table = seq.block_table().tolist()
    unshared += len(table)
    print(f"request {number}: table {table}, reused {reused}, computed {len(seq) - reused}")
print(f"{kv.pools[0].num_used_blocks} blocks in use; {unshared} without sharing")
kv.check()
