"""How far two texts, tuples or lists are the same from either end, against comparing element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctx.common_ends import common_end, common_start


def by_element(left: Sequence[Any], right: Sequence[Any]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


@pytest.mark.parametrize(
    "kind", [lambda values: "".join(map(str, values)), tuple, list], ids=["text", "tuple", "list"]
)
@given(
    shared=st.lists(st.integers(0, 1), max_size=400),
    left=st.lists(st.integers(0, 1), max_size=80),
    right=st.lists(st.integers(0, 1), max_size=80),
    data=st.data(),
)
def test_the_start_is_what_comparing_element_by_element_gives(
    kind: Callable[[list[int]], Any],
    shared: list[int],
    left: list[int],
    right: list[int],
    data: st.DataObject,
) -> None:
    old, new = kind(shared + left), kind(shared + right)
    expected = by_element(old, new)
    assert common_start(old, new) == expected
    assert common_start(old, new, data.draw(st.integers(0, expected))) == expected


@given(
    shared=st.text("ab", max_size=400),
    left=st.text("ab", max_size=80),
    right=st.text("ab", max_size=80),
    limit=st.integers(-1, 500),
)
def test_the_end_is_what_comparing_character_by_character_gives(
    shared: str, left: str, right: str, limit: int
) -> None:
    old, new = left + shared, right + shared
    expected = by_element(old[::-1], new[::-1])
    assert common_end(old, new) == expected
    assert common_end(old, new, limit) == max(0, min(expected, limit))
