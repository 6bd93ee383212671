"""Lesson example 5: two requests with the same system prompt share its whole blocks."""

from __future__ import annotations

from agentctx_engine.memory import KVManager, KVSequence

SYSTEM = list(range(1000, 1070))


def admit(kv: KVManager, question: list[int]) -> KVSequence:
    prompt = SYSTEM + question
    seq = kv.open(prompt)
    assert kv.admit(seq, len(prompt))
    return seq


def test_the_second_request_computes_only_what_differs() -> None:
    kv = KVManager(64, 16)
    first = admit(kv, list(range(5000, 5020)))
    assert first.num_computed_tokens == 0
    assert len(first) - first.num_computed_tokens == 90
    kv.commit(first, len(first))
    second = admit(kv, list(range(6000, 6033)))
    assert first.block_table().tolist() == [0, 1, 2, 3, 4, 5]
    assert second.block_table().tolist() == [0, 1, 2, 3, 6, 7, 8]
    assert second.num_computed_tokens == 64
    assert len(second) - second.num_computed_tokens == 39
    [pool] = kv.pools
    assert [pool.ref_count(block) for block in range(9)] == [2, 2, 2, 2, 1, 1, 1, 1, 1]
    assert pool.num_used_blocks == 9
    assert len(first.block_table()) + len(second.block_table()) == 13
    kv.check()
