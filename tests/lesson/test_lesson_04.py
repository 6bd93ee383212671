"""Lesson example 4: samples of one prompt share its blocks until one writes."""

from __future__ import annotations

import numpy as np

from agentctx_engine.memory import KVManager


def test_fork_shares_and_a_write_copies() -> None:
    kv = KVManager(16, 16)
    parent = kv.open(np.arange(40, dtype=np.int32))
    assert kv.admit(parent, 40)
    kv.commit(parent, 40)
    samples = [parent, kv.fork(parent), kv.fork(parent)]
    [pool] = kv.pools
    assert [seq.block_table().tolist() for seq in samples] == [[0, 1, 2]] * 3
    assert [pool.ref_count(block) for block in (0, 1, 2)] == [3, 3, 3]
    assert kv.take_copies() == []

    for number, seq in enumerate(samples):
        seq.append([1000 + number])
        assert kv.reserve(seq, 41)
    # Sample 2 is the last to read block 2, so it writes in place: the copies run before any write.
    assert [(copy.source, copy.destination) for copy in kv.take_copies()] == [(2, 3), (2, 4)]
    assert [seq.block_table().tolist() for seq in samples] == [[0, 1, 3], [0, 1, 4], [0, 1, 2]]
    assert [pool.ref_count(block) for block in range(5)] == [3, 3, 1, 1, 1]
    assert pool.num_used_blocks == 5  # three private copies would take 9
    assert [seq.tables[0].slot(40) for seq in samples] == [3 * 16 + 8, 4 * 16 + 8, 2 * 16 + 8]
    kv.check()
