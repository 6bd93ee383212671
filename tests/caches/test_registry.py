"""Cache specs: what they build, and what a wrong one says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx.caches.model import Arrival
from agentctx.caches.prefix import PrefixCacheModel
from agentctx.caches.registry import KINDS, parse_cache
from agentctx.errors import UsageError
from agentctx_engine.memory.paged_cache import PagedCache
from agentctx_engine.memory.radix_cache import RadixCache

prompts = st.lists(st.integers(1, 3), min_size=1, max_size=24)
turns = st.lists(st.tuples(prompts, st.lists(st.integers(1, 3), max_size=5)), min_size=1, max_size=12)


def ids(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.asarray(values, np.int32)


@pytest.mark.parametrize("spec", [kind.name for kind in KINDS])
def test_every_kind_counts_each_token_once(spec: str) -> None:
    cache = parse_cache(spec)
    prompt = ids(list(range(1, 101)))
    first = cache.commit(prompt, ids([7, 8, 9]))
    assert first.cached == 0
    again = cache.predict(prompt)
    assert 0 < again.cached < 100
    assert again.cached + sum(tokens for _, tokens in again.lost) == 100


@settings(max_examples=200, deadline=None)
@given(turns, st.integers(1, 5))
def test_whole_pages_in_a_tree_are_whole_blocks_in_a_hash_chain(
    served: list[tuple[list[int], list[int]]], block: int
) -> None:
    """Without a limit `paged` and `radix` compare texts; this is the proof that hash chain and tree would say the same."""
    by_text = parse_cache(f"paged:{block}")
    assert isinstance(by_text, PrefixCacheModel)
    by_chain = PrefixCacheModel("chain", PagedCache.of_size(block_size=block))
    by_tree = PrefixCacheModel("tree", RadixCache(page_size=block))
    for prompt, reply in served:
        predicted = by_text.predict(ids(prompt))
        assert predicted == by_chain.predict(ids(prompt))
        assert predicted.cached == by_tree.predict(ids(prompt)).cached
        assert by_text.commit(ids(prompt), ids(reply)) == by_chain.commit(ids(prompt), ids(reply))
        by_tree.commit(ids(prompt), ids(reply))
    assert by_text.stats() == replace(by_chain.stats(), cached_tokens=by_text.stats().cached_tokens)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(prompts, st.sampled_from([None, "a", "b"])), min_size=1, max_size=12))
def test_salted_texts_never_meet(served: list[tuple[list[int], str | None]]) -> None:
    by_text, by_tree = parse_cache("radix"), PrefixCacheModel("tree", RadixCache())
    for prompt, salt in served:
        arrival = Arrival(salt=salt)
        assert by_text.predict(ids(prompt), arrival) == by_tree.predict(ids(prompt), arrival)
        by_text.commit(ids(prompt), ids([]), arrival)
        by_tree.commit(ids(prompt), ids([]), arrival)


@settings(max_examples=200, deadline=None)
@given(turns, st.sampled_from(["paged:block=2,capacity=40", "radix:page=1,capacity=80"]))
def test_a_limit_never_adds_hits(served: list[tuple[list[int], list[int]]], spec: str) -> None:
    cache = parse_cache(spec)
    for prompt, reply in served:
        unlimited = cache.without_limits(ids(prompt))
        prediction = cache.commit(ids(prompt), ids(reply))
        assert prediction.cached <= unlimited < len(prompt)
        assert prediction.cached + sum(tokens for _, tokens in prediction.lost) == len(prompt)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("pagd:16", "paged, radix, slot, llama-server"),
        ("paged:0", "block=N, capacity=N"),
        ("paged:block=x", "block=x"),
        ("slot:3", "no options"),
        ("radix:size=2", "page=N"),
        ("llama-server:slots=0", "slots=N"),
        ("llama-server:similarity=2", "similarity=2"),
        ("llama-server:similarity=nan", "similarity=nan"),
        ("llama-server:window=8,recurrent=1", "both a window and recurrent"),
    ],
)
def test_a_wrong_spec_names_itself_and_what_is_allowed(spec: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_cache(spec)
    assert says in str(error.value)
    assert spec.split(":")[0] in str(error.value)
