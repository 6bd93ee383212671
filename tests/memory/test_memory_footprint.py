"""One million cached blocks, and what they cost: the memory of a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

MOST_MEGABYTES = 400

FILL = """
import numpy as np
from agentctx_engine.memory import KVManager

def peak():
    with open("/proc/self/status") as status:
        return next(line.split()[1] for line in status if line.startswith("VmHWM:"))

kv = KVManager(1_000_000, 16)
[pool] = kv.pools
tokens = np.random.default_rng(0)
for number in range(1, 4001):
    seq = kv.open(tokens.integers(0, 50_000, 16_000).astype(np.int32))
    assert kv.admit(seq, len(seq))
    kv.commit(seq, len(seq))
    kv.free(seq)
    if number % 1000 == 0:
        assert pool.num_cached_blocks == pool.num_findable_hashes == 1_000_000
        # The last conversation is still there whole: nothing was dropped to stay small.
        assert kv.match(seq).num_tokens == 15_984
        print(pool.counters.evicted_blocks, peak())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_million_cached_blocks_take_less_than_400_megabytes() -> None:
    """The peak of the whole process: interpreter, numpy, hashes, free queue and the remembered text.

    In every state: full for the first time, and after every block has been evicted and cached anew one, two and three
    times, so that the tables of hashes have been rebuilt and evicted text is remembered beside the cached.
    """
    run = subprocess.run([sys.executable, "-c", FILL], capture_output=True, text=True, check=True)
    peaks = {int(evicted): int(kib) * 1024 / 1e6 for evicted, kib in map(str.split, run.stdout.splitlines())}
    print(f"peak resident memory in MB by evicted blocks: {peaks}")
    assert list(peaks) == [0, 1_000_000, 2_000_000, 3_000_000]
    assert max(peaks.values()) < MOST_MEGABYTES
