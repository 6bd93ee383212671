"""A cache that never loses anything answers as the paged one does whose memory has no limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx_engine.memory import PagedCache
from agentctx_engine.memory.prefix_cache import Lost, Match
from agentctx_engine.memory.unlimited_cache import UnlimitedCache

few = st.lists(st.integers(0, 1), max_size=9)
steps = st.lists(st.tuples(few, few, st.sampled_from([None, "a", "b"]), st.booleans()), max_size=8)


@given(steps, few, st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_it_answers_as_pages_without_limit(
    steps: list[tuple[list[int], list[int], str | None, bool]], prompt: list[int], block_size: int
) -> None:
    fast, paged = UnlimitedCache(block_size), PagedCache.of_size(None, block_size)
    waiting = []
    for text, output, salt, at_once in steps:
        leases = fast.commit(text, salt=salt), paged.commit(text, salt=salt)
        assert leases[0].match.hit_tokens == leases[1].match.hit_tokens
        waiting.append((leases, output))
        if at_once:
            for (mine, theirs), said in reversed(waiting):
                fast.release(mine, said)
                paged.release(theirs, said)
            waiting.clear()
    for salt in (None, "a", "b"):
        mine, theirs = fast.match(prompt, salt=salt), paged.match(prompt, salt=salt)
        assert (mine.hit_tokens, mine.stop) == (theirs.hit_tokens, theirs.stop)
        assert dict(mine.lost) == dict(theirs.lost)
        assert mine.hit_tokens + sum(count for _, count in mine.lost) == len(prompt)
    counts, others = fast.stats(), paged.stats()
    assert (counts.requests, counts.prompt_tokens, counts.hit_tokens) == (
        others.requests, others.prompt_tokens, others.hit_tokens,
    )  # fmt: skip


def test_to_the_token() -> None:
    cache = UnlimitedCache()
    assert cache.match([]) == Match(0)
    assert cache.match([7]) == Match(0, ((Lost.FIRST_DIFFERENCE, 1),), Lost.FIRST_DIFFERENCE)
    lease = cache.commit(range(10))
    assert cache.match(range(10)) == Match(9, ((Lost.WHOLE_PROMPT, 1),), Lost.WHOLE_PROMPT)
    cache.release(lease, [20, 21, 22])
    assert cache.match([*range(10), 20, 21, 22, 5]).hit_tokens == 12, "the last token was never read"
    assert cache.match(range(10), salt="other") == Match(
        0, ((Lost.SALT, 9), (Lost.WHOLE_PROMPT, 1)), Lost.SALT
    )
    stats = cache.stats()
    assert (stats.requests, stats.prompt_tokens, stats.hit_tokens, stats.cached_tokens) == (1, 10, 0, 12)
    assert (stats.capacity_tokens, stats.evicted_tokens) == (None, 0)
    with pytest.raises(RuntimeError, match="released already"):
        cache.release(lease)
    with pytest.raises(ValueError, match="block_size is 0"):
        UnlimitedCache(0)
