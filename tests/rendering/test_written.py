"""A text that shares its beginning with others is the text that joining gives, whoever asks for it and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctx.rendering import written
from agentctx.rendering.written import Written

parts = st.text("ab漢", max_size=12)


@given(st.lists(st.tuples(st.integers(0, 40), parts, st.booleans()), max_size=8), parts)
def test_texts_that_go_on_from_one_another(steps: list[tuple[int, str, bool]], beginning: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(written, "_LONGEST_TAIL", 10)
        made, expected = [Written(beginning)], [beginning]
        for kept, more, asked in steps:
            kept = min(kept, len(expected[-1]))
            made.append(made[-1].extended(kept, more))
            expected.append(expected[-1][:kept] + more)
            if asked:
                str(made[-1])
    for text, whole in zip(made, expected, strict=True):
        assert len(text) == len(whole)
        for place in range(len(whole) + 1):
            assert text.behind(place) == whole[place:]
            assert text.part(place // 2, place) == whole[place // 2 : place]
        assert Written.of(text).startswith(whole[: len(whole) // 2])
        assert str(text.begun("x")) == "x" + whole
        assert text.startswith(whole)
        assert not text.startswith(whole + "x")
        assert str(text) == whole


def test_a_long_tail_becomes_part_of_what_is_shared() -> None:
    text = Written("a").extended(1, "b" * 100_000)
    assert text.extended(100_001, "c").behind(100_000) == "bc"
    assert text.extended(100_001, "c")._parts[0] is text._parts[0]
