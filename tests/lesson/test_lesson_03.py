"""Lesson example 3: how much of the pool stores tokens, with regions and with blocks."""

from __future__ import annotations

import numpy as np

from agentctx_engine.memory import KVManager, ReserveMaximum

POOL, BLOCK, MAXIMUM = 8192, 16, 2048
LENGTHS = [
    1187, 1392, 174, 324, 1406, 905, 1354, 791, 1022, 1421, 1131, 803, 1447, 860, 1128, 590, 1278, 915, 917, 1117,
    1408, 1065, 108, 256, 461, 502, 1080, 347, 1215, 220, 389, 792, 1457, 1229, 1407, 1330, 846, 1243, 469, 533,
]  # fmt: skip


def test_reserved_regions() -> None:
    pool = ReserveMaximum(POOL, MAXIMUM)
    admitted = next(i for i, tokens in enumerate(LENGTHS) if pool.admit(tokens) is None)
    assert (admitted, pool.num_tokens, f"{100 * pool.utilisation:.1f}") == (4, 3077, "37.6")


def test_paged_blocks() -> None:
    kv = KVManager(POOL // BLOCK, BLOCK)
    running = []
    for number, tokens in enumerate(LENGTHS):
        # Different first tokens: nothing is shared here.
        seq = kv.open(np.arange(tokens, dtype=np.int32) + 10_000 * number)
        if not kv.admit(seq, tokens):
            break
        kv.commit(seq, tokens)
        running.append(seq)
    stored = sum(len(seq) for seq in running)
    waste = [seq.num_slots - len(seq) for seq in running]
    assert (len(running), stored, f"{100 * stored / POOL:.1f}") == (8, 7533, "92.0")
    assert (sum(waste), f"{sum(waste) / len(waste):.1f}") == (51, "6.4")
    assert max(waste) <= BLOCK - 1
    kv.check()
