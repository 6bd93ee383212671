"""Lesson example 9: how the order of a prompt's parts decides the hit rate of a paged cache."""

from __future__ import annotations

import pytest

from agentctx_engine.memory import PagedCache

TOOL_ORDERS = [
    [6, 9, 7, 8, 4, 2, 0, 3, 1, 5], [0, 9, 6, 4, 2, 3, 5, 1, 7, 8], [0, 7, 2, 1, 8, 4, 9, 3, 5, 6],
    [8, 1, 2, 6, 0, 7, 5, 4, 9, 3], [5, 2, 4, 3, 8, 7, 0, 1, 6, 9], [6, 7, 4, 1, 9, 5, 8, 0, 3, 2],
    [3, 0, 8, 5, 7, 2, 9, 4, 1, 6], [2, 8, 6, 1, 0, 4, 9, 5, 7, 3], [8, 6, 2, 9, 7, 0, 3, 1, 4, 5],
    [9, 0, 3, 6, 7, 5, 1, 4, 8, 2],
]  # fmt: skip


def prompts(layout: str) -> list[list[int]]:
    """The ten turns' prompts: system 300, ten tools of 50, history of 120 a turn, a new message of 30."""
    turns, history = [], list[int]()
    for turn in range(10):
        order = TOOL_ORDERS[turn] if layout == "tools shuffled" else range(10)
        clock = range(90_000 + 10 * turn, 90_010 + 10 * turn) if layout == "timestamp first" else ()
        tools = [token for tool in order for token in range(20_000 + 100 * tool, 20_050 + 100 * tool)]
        message = list(range(50_000 + 1000 * turn, 50_030 + 1000 * turn))
        turns.append([*clock, *range(10_000, 10_300), *tools, *history, *message])
        history += message + list(range(60_000 + 1000 * turn, 60_090 + 1000 * turn))
    return turns


@pytest.mark.parametrize(
    ("layout", "prompt_tokens", "cached", "rate"),
    [
        ("stable", 13700, 11696, "85.4"),
        ("timestamp first", 13800, 0, "0.0"),
        ("tools shuffled", 13700, 2736, "20.0"),
    ],
)
def test_hit_rate(layout: str, prompt_tokens: int, cached: int, rate: str) -> None:
    cache = PagedCache.of_size(None, 16)
    for prompt in prompts(layout):
        cache.release(cache.commit(prompt))
    stats = cache.stats()
    assert (stats.prompt_tokens, stats.hit_tokens) == (prompt_tokens, cached)
    assert f"{100 * stats.hit_tokens / stats.prompt_tokens:.1f}" == rate
    cache.manager.check()
