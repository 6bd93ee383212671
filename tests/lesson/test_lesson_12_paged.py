"""Lesson example 12, by blocks: a window group that keeps 768 cells, against one that keeps everything.

One-token blocks, so that the figures are those of llama-server's cells. Its rule asks for one position more than a
window of 128 needs: its threshold for 350 tokens is 222, and the first token that a query at 350 sees is 223.
"""

from __future__ import annotations

import numpy as np
import pytest

from agentctx_engine.memory import FullAttention, KVManager, KVSequence, Lost, SlidingWindow

WINDOW, SHARED, FIRST, SECOND = 128, 350, 1841, 354
CHUNK = 1  # a ring is overwritten cell by cell

first_prompt = np.arange(FIRST, dtype=np.int32)
second_prompt = np.concatenate([first_prompt[:SHARED], np.arange(4, dtype=np.int32) + 9000])


def manager(window_cells: int) -> KVManager:
    return KVManager([4096, window_cells + 1], 1, groups=[FullAttention(), SlidingWindow(WINDOW)])


def prefill(kv: KVManager, seq: KVSequence) -> int:
    """Compute a prompt in chunks; returns the tokens reused."""
    hit = kv.match(seq)
    assert kv.admit(seq, min(len(seq), hit.num_tokens + CHUNK), hit)
    while True:
        end = min(len(seq), seq.num_computed_tokens + CHUNK)
        assert kv.reserve(seq, end)
        kv.commit(seq, end)
        if end == len(seq):
            return hit.num_tokens


def oldest_window_position(kv: KVManager, seq: KVSequence) -> int:
    return next(p for p, digest in enumerate(seq.digests) if kv.groups[1].find(digest) is not None)


@pytest.fixture
def ring() -> KVManager:
    """768 local cells that have served the first prompt."""
    kv = manager(768)
    seq = kv.open(first_prompt)
    assert prefill(kv, seq) == 0
    kv.free(seq)
    return kv


def test_the_ring_holds_only_the_end_of_the_first_prompt(ring: KVManager) -> None:
    assert oldest_window_position(ring, ring.open(first_prompt)) == 1073
    ring.check()


def test_a_prompt_that_branches_far_back_is_computed_again(ring: KVManager) -> None:
    seq = ring.open(second_prompt)
    match = ring.explain(seq, ring.match(seq))
    assert match.hit_tokens == 0
    assert match.lost == ((Lost.WINDOW, SHARED), (Lost.FIRST_DIFFERENCE, SECOND - SHARED))
    assert match.stop is Lost.WINDOW
    window = ring.groups[1]
    first_needed = SHARED - WINDOW + 1
    assert window.num_skipped_blocks(SHARED) == first_needed == 222 + 1
    assert prefill(ring, seq) == 0
    assert len(seq) == 354
    ring.free(seq)
    ring.check()


def test_full_size_local_memory_reuses_the_shared_text() -> None:
    kv = manager(4096)
    seq = kv.open(first_prompt)
    prefill(kv, seq)
    kv.free(seq)
    follower = kv.open(second_prompt)
    reused = prefill(kv, follower)
    assert (reused, len(follower) - reused) == (350, 4)
    kv.free(follower)
    kv.check()


def test_a_prompt_that_only_grows_loses_nothing(ring: KVManager) -> None:
    longer = ring.open(np.concatenate([first_prompt, np.arange(30, dtype=np.int32) + 9000]))
    hit = ring.match(longer)
    assert hit.num_tokens == FIRST
    window_blocks = hit.blocks[1]
    first_held = next(p for p, block in enumerate(window_blocks) if block != 0)
    assert first_held == FIRST - WINDOW + 1 == 1713 + 1
    assert prefill(ring, longer) == FIRST
    ring.free(longer)
    ring.check()
