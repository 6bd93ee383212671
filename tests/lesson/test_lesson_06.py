"""Lesson example 6: hash chains, and the whole-prompt rule."""

from __future__ import annotations

import pytest

from agentctx_engine.memory import BlockHasher, KVManager, Lost

BASE = [11, 12, 13, 14, 21, 22, 23, 24, 31, 32, 33, 34, 41, 42]


def changed(position: int) -> list[int]:
    return [99 if i == position else token for i, token in enumerate(BASE)]


@pytest.mark.parametrize(
    ("tokens", "extra", "expected"),
    [
        (BASE, b"", ["6cfd527e", "9f569157", "e0297480"]),
        (changed(9), b"", ["6cfd527e", "9f569157", "6417173d"]),
        (changed(1), b"", ["f896424a", "becafd48", "11e3be4a"]),
        (BASE, b"tenant-b", ["6057b827", "793c15f6", "099ad05f"]),
    ],
    ids=["base", "late edit", "early edit", "salted"],
)
def test_chains(tokens: list[int], extra: bytes, expected: list[str]) -> None:
    digests = BlockHasher().chain(tokens, 4, every=extra)
    assert [digest.hex()[:8] for digest in digests] == expected
    assert (len(digests), len(tokens) - 4 * len(digests)) == (3, 2)


def test_a_sequence_carries_the_same_chain() -> None:
    seq = KVManager(8, 4).open(BASE)
    assert [digest.hex()[:8] for digest in seq.digests] == ["6cfd527e", "9f569157", "e0297480"]


def test_a_prompt_of_64_tokens_reuses_at_most_48() -> None:
    kv = KVManager(16, 16)
    prompt = list(range(64))
    seq = kv.open(prompt)
    assert kv.admit(seq, 64)
    kv.commit(seq, 64)
    kv.free(seq)
    again = kv.open(prompt)
    match = kv.explain(again, kv.match(again))
    assert match.hit_tokens == 48
    assert match.lost == ((Lost.BLOCK_ROUNDING, 15), (Lost.WHOLE_PROMPT, 1))
    assert match.stop is Lost.WHOLE_PROMPT
    kv.check()
