"""Every token that is not reused has one reason, with the count that the situation dictates."""

from __future__ import annotations

import pytest

from agentctx_engine.memory import (
    Adapter,
    ExtraKeys,
    FullAttention,
    ImageSpan,
    KVManager,
    KVSequence,
    Lost,
    Match,
    SlidingWindow,
)
from agentctx_engine.memory.block_hash import NO_KEYS

BLOCK = 16


def serve(kv: KVManager, tokens: list[int], keys: ExtraKeys = NO_KEYS) -> KVSequence:
    seq = kv.open(tokens, keys)
    assert kv.admit(seq, len(tokens))
    kv.commit(seq, len(tokens))
    kv.take_transfers()
    kv.free(seq)
    return seq


def ask(kv: KVManager, tokens: list[int], keys: ExtraKeys = NO_KEYS, *, read_cache: bool = True) -> Match:
    seq = kv.open(tokens, keys, read_cache=read_cache)
    match = kv.explain(seq, kv.match(seq))
    assert match.hit_tokens + sum(count for _, count in match.lost) == len(tokens)
    kv.check()
    return match


def text(count: int, first: int = 0) -> list[int]:
    return list(range(first, first + count))


def test_an_empty_prompt_and_an_empty_cache() -> None:
    kv = KVManager(8, BLOCK)
    assert ask(kv, []) == Match(0)
    assert ask(kv, [1]) == Match(0, ((Lost.FIRST_DIFFERENCE, 1),), Lost.FIRST_DIFFERENCE)
    assert ask(kv, text(40)) == Match(0, ((Lost.FIRST_DIFFERENCE, 40),), Lost.FIRST_DIFFERENCE)


def test_a_prompt_that_goes_on() -> None:
    kv = KVManager(32, BLOCK)
    serve(kv, text(64))
    # A continuation at a block's end loses nothing but what is new.
    assert ask(kv, text(64) + text(10, 900)) == Match(
        64, ((Lost.FIRST_DIFFERENCE, 10),), Lost.FIRST_DIFFERENCE
    )
    serve(kv, text(70))
    assert ask(kv, text(70) + text(10, 900)) == Match(
        64, ((Lost.BLOCK_ROUNDING, 6), (Lost.FIRST_DIFFERENCE, 10)), Lost.BLOCK_ROUNDING
    )


def test_a_prompt_that_differs_inside_a_block() -> None:
    kv = KVManager(32, BLOCK)
    serve(kv, text(100))
    assert ask(kv, text(37) + text(20, 900)) == Match(
        32, ((Lost.BLOCK_ROUNDING, 5), (Lost.FIRST_DIFFERENCE, 20)), Lost.BLOCK_ROUNDING
    )
    assert ask(kv, text(20, 900)) == Match(0, ((Lost.FIRST_DIFFERENCE, 20),), Lost.FIRST_DIFFERENCE)


def test_the_same_prompt_again() -> None:
    kv = KVManager(32, BLOCK)
    serve(kv, text(70))
    assert ask(kv, text(70)) == Match(
        64, ((Lost.BLOCK_ROUNDING, 5), (Lost.WHOLE_PROMPT, 1)), Lost.BLOCK_ROUNDING
    )
    # A whole number of blocks: without the whole-prompt rule all of it would be reused.
    assert ask(kv, text(64)) == Match(
        48, ((Lost.BLOCK_ROUNDING, 15), (Lost.WHOLE_PROMPT, 1)), Lost.WHOLE_PROMPT
    )
    assert ask(kv, text(65)) == Match(64, ((Lost.WHOLE_PROMPT, 1),), Lost.WHOLE_PROMPT)


def test_evicted() -> None:
    kv = KVManager(6, BLOCK)
    serve(kv, text(70))
    serve(kv, text(48, 900))
    # Two blocks were free, and of the four cached ones the last had to go.
    assert ask(kv, text(70) + text(10, 500)) == Match(
        48, ((Lost.EVICTED, 16), (Lost.BLOCK_ROUNDING, 6), (Lost.FIRST_DIFFERENCE, 10)), Lost.EVICTED
    )
    serve(kv, text(96, 2000))
    assert ask(kv, text(70)) == Match(
        0, ((Lost.EVICTED, 64), (Lost.BLOCK_ROUNDING, 5), (Lost.WHOLE_PROMPT, 1)), Lost.EVICTED
    )


@pytest.mark.parametrize(
    ("cached", "asked"),
    [
        (NO_KEYS, ExtraKeys(cache_salt="a")),
        (ExtraKeys(cache_salt="a"), NO_KEYS),
        (ExtraKeys(cache_salt="a"), ExtraKeys(cache_salt="b")),
        (ExtraKeys(adapter=Adapter("a")), ExtraKeys(adapter=Adapter("b"))),
        (NO_KEYS, ExtraKeys(adapter=Adapter("a"))),
    ],
)
def test_cached_under_other_keys(cached: ExtraKeys, asked: ExtraKeys) -> None:
    kv = KVManager(32, BLOCK)
    serve(kv, text(50), cached)
    assert ask(kv, text(50) + text(10, 900), asked) == Match(
        0, ((Lost.SALT, 48), (Lost.BLOCK_ROUNDING, 2), (Lost.FIRST_DIFFERENCE, 10)), Lost.SALT
    )


def test_cached_with_another_image() -> None:
    kv = KVManager(32, BLOCK)
    serve(kv, text(64), ExtraKeys(images=(ImageSpan("cat", 20, 12),)))
    assert ask(kv, text(70), ExtraKeys(images=(ImageSpan("dog", 20, 12),))) == Match(
        16, ((Lost.SALT, 48), (Lost.FIRST_DIFFERENCE, 6)), Lost.SALT
    )


def test_more_under_other_keys_than_under_the_own() -> None:
    kv = KVManager(32, BLOCK)
    serve(kv, text(32))
    serve(kv, text(64), ExtraKeys(cache_salt="a"))
    assert ask(kv, text(70)) == Match(32, ((Lost.SALT, 32), (Lost.FIRST_DIFFERENCE, 6)), Lost.SALT)


def test_a_window_that_is_gone() -> None:
    kv = KVManager([64, 9], BLOCK, groups=[FullAttention(), SlidingWindow(32)])
    serve(kv, text(64))
    serve(kv, text(128, 900))
    assert ask(kv, text(64) + text(5, 500)) == Match(
        0, ((Lost.WINDOW, 64), (Lost.FIRST_DIFFERENCE, 5)), Lost.WINDOW
    )


def test_windows_alone() -> None:
    kv = KVManager(9, BLOCK, groups=[SlidingWindow(32)])
    serve(kv, text(64))
    serve(kv, text(128, 900))
    assert ask(kv, text(70)) == Match(0, ((Lost.WINDOW, 64), (Lost.FIRST_DIFFERENCE, 6)), Lost.WINDOW)


def test_reuse_is_forbidden() -> None:
    kv = KVManager(32, BLOCK)
    serve(kv, text(64))
    assert ask(kv, text(70), read_cache=False) == Match(
        0, ((Lost.DISABLED, 64), (Lost.FIRST_DIFFERENCE, 6)), Lost.DISABLED
    )
    off = KVManager(32, BLOCK, caching=False)
    serve(off, text(64))
    assert ask(off, text(70)).hit_tokens == 0


def test_to_the_token() -> None:
    kv = KVManager(32, BLOCK, token_granular=True)
    serve(kv, text(70))
    assert ask(kv, text(70) + text(10, 900)) == Match(
        70, ((Lost.FIRST_DIFFERENCE, 10),), Lost.FIRST_DIFFERENCE
    )
    assert ask(kv, text(70)) == Match(69, ((Lost.WHOLE_PROMPT, 1),), Lost.WHOLE_PROMPT)
    assert ask(kv, text(64)) == Match(63, ((Lost.WHOLE_PROMPT, 1),), Lost.WHOLE_PROMPT)
    assert ask(kv, text(37) + text(10, 900)) == Match(
        37, ((Lost.FIRST_DIFFERENCE, 10),), Lost.FIRST_DIFFERENCE
    )


def test_two_block_sizes_round_to_both() -> None:
    kv = KVManager(40, groups=[FullAttention(block_size=32), FullAttention(block_size=16)])
    serve(kv, text(96))
    assert ask(kv, text(80) + text(9, 900)) == Match(
        64, ((Lost.BLOCK_ROUNDING, 16), (Lost.FIRST_DIFFERENCE, 9)), Lost.BLOCK_ROUNDING
    )


def test_after_a_reset_nothing_was_ever_cached() -> None:
    kv = KVManager(32, BLOCK)
    serve(kv, text(64))
    assert kv.reset()
    assert ask(kv, text(64)) == Match(0, ((Lost.FIRST_DIFFERENCE, 64),), Lost.FIRST_DIFFERENCE)
