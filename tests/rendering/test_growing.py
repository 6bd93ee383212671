"""Prompts share memory, and none ever sees another's tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentctx.rendering.growing import Grown

values = st.lists(st.integers(0, 3), max_size=6)


def grown(ids: list[int]) -> Grown:
    array = np.array(ids, np.int32)
    return Grown.of(array, array + np.int32(10))


@given(values, st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100), values), max_size=12))
def test_each_is_what_copying_gives(first: list[int], steps: list[tuple[int, int, list[int]]]) -> None:
    """From any earlier one, at any place, in any order: what was there before stays as it was."""
    made, expected = [grown(first)], [first]
    for which, place, ids in steps:
        at = which % len(made)
        kept = place % (len(expected[at]) + 1)
        array = np.array(ids, np.int32)
        made.append(made[at].extended(kept, array, array + np.int32(10)))
        expected.append(expected[at][:kept] + ids)
        for have, want in zip(made, expected, strict=True):
            assert have.ids.tolist() == want
            assert have.starts.tolist() == [value + 10 for value in want]


def test_an_extension_is_not_copied() -> None:
    array = np.array([1, 2], np.int32)
    one = grown([0]).extended(1, array, array)
    further = one.extended(2, np.array([2, 3], np.int32), np.array([2, 3], np.int32))
    assert np.shares_memory(one.ids, further.ids)
    fork = one.extended(2, np.array([2, 9], np.int32), np.array([2, 9], np.int32))
    assert not np.shares_memory(fork.ids, further.ids)
