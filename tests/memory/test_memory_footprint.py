"""One million cached blocks, and what they cost: the memory of a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

MOST_MEGABYTES = 400

FILL = """
import numpy as np
from agentctx_engine.memory import KVManager

kv = KVManager(1_000_000, 16)
tokens = np.random.default_rng(0)
for _ in range(1000):
    seq = kv.open(tokens.integers(0, 50_000, 16_000).astype(np.int32))
    assert kv.admit(seq, len(seq))
    kv.commit(seq, len(seq))
    kv.free(seq)
[pool] = kv.pools
assert pool.num_cached_blocks == pool.num_findable_hashes == 1_000_000
# The last conversation is still there whole: nothing was dropped to stay small.
assert kv.match(seq).num_tokens == 15_984
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_million_cached_blocks_take_less_than_400_megabytes() -> None:
    """The peak of the whole process: interpreter, numpy, hashes, free queue and the remembered text (64 MB of it)."""
    run = subprocess.run([sys.executable, "-c", FILL], capture_output=True, text=True, check=True)
    megabytes = int(run.stdout) * 1024 / 1e6
    print(f"peak resident memory: {megabytes:.0f} MB")
    assert megabytes < MOST_MEGABYTES
