"""Cache specs: what they build, and what a wrong one says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx.caches.prefix import PrefixCacheModel
from agentctx.caches.registry import KINDS, parse_cache
from agentctx.errors import UsageError
from agentctx_engine.memory.paged_cache import PagedCache

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
    """`paged` without a limit runs the tree; this is the proof that the hash chain would say the same."""
    by_tree = parse_cache(f"paged:{block}")
    by_chain = PrefixCacheModel("chain", PagedCache.of_size(block_size=block))
    for prompt, reply in served:
        assert by_tree.predict(ids(prompt)).cached == by_chain.predict(ids(prompt)).cached
        assert (
            by_tree.commit(ids(prompt), ids(reply)).cached == by_chain.commit(ids(prompt), ids(reply)).cached
        )


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
