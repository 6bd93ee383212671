"""Example 3: what fits into 8,192 slots with reserved regions, and with blocks of 16."""

from __future__ import annotations

import numpy as np

from agentctx_engine.memory import KVManager, ReserveMaximum

POOL, BLOCK, MAXIMUM = 8192, 16, 2048
LENGTHS = [
    1187, 1392, 174, 324, 1406, 905, 1354, 791, 1022, 1421, 1131, 803, 1447, 860, 1128, 590, 1278, 915, 917, 1117,
    1408, 1065, 108, 256, 461, 502, 1080, 347, 1215, 220, 389, 792, 1457, 1229, 1407, 1330, 846, 1243, 469, 533,
]  # fmt: skip

regions = ReserveMaximum(POOL, MAXIMUM)
admitted = next(number for number, tokens in enumerate(LENGTHS) if regions.admit(tokens) is None)
print(f"contiguous: {admitted} requests, {regions.num_tokens} tokens, {regions.utilisation:.1%} of the pool")

kv = KVManager(POOL // BLOCK, BLOCK)
running = []
for number, tokens in enumerate(LENGTHS):
    seq = kv.open(np.arange(tokens, dtype=np.int32) + 10_000 * number)  # nothing is shared here
    if not kv.admit(seq, tokens):
        break
    kv.commit(seq, tokens)
    running.append(seq)
stored = sum(len(seq) for seq in running)
waste = [seq.num_slots - len(seq) for seq in running]
print(f"paged:      {len(running)} requests, {stored} tokens, {stored / POOL:.1%} of the pool")
print(
    f"waste: {sum(waste)} slots, {sum(waste) / len(waste):.1f} a request, never over {BLOCK - 1}: {max(waste) < BLOCK}"
)
