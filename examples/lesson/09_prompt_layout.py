"""Example 9: the order of a prompt's parts decides the hit rate."""

from __future__ import annotations

from agentctx_engine.memory import PagedCache

SHUFFLED = [
    [6, 9, 7, 8, 4, 2, 0, 3, 1, 5], [0, 9, 6, 4, 2, 3, 5, 1, 7, 8], [0, 7, 2, 1, 8, 4, 9, 3, 5, 6],
    [8, 1, 2, 6, 0, 7, 5, 4, 9, 3], [5, 2, 4, 3, 8, 7, 0, 1, 6, 9], [6, 7, 4, 1, 9, 5, 8, 0, 3, 2],
    [3, 0, 8, 5, 7, 2, 9, 4, 1, 6], [2, 8, 6, 1, 0, 4, 9, 5, 7, 3], [8, 6, 2, 9, 7, 0, 3, 1, 4, 5],
    [9, 0, 3, 6, 7, 5, 1, 4, 8, 2],
]  # fmt: skip


def fresh(part: int, tokens: int) -> list[int]:
    """Tokens that stand nowhere else; the same part gives the same tokens."""
    return list(range(1000 * part, 1000 * part + tokens))


def prompts(*, clock_first: bool = False, shuffle: bool = False) -> list[list[int]]:
    """Ten turns: system 300, ten tools of 50, 120 tokens of history a turn, a new message of 30."""
    turns: list[list[int]] = []
    history: list[int] = []
    for turn in range(10):
        clock = fresh(100 + turn, 10) if clock_first else []
        tools = [
            token for tool in (SHUFFLED[turn] if shuffle else range(10)) for token in fresh(10 + tool, 50)
        ]
        message = fresh(200 + turn, 30)
        turns.append(clock + fresh(1, 300) + tools + history + message)
        history = history + message + fresh(300 + turn, 90)
    return turns


for layout, turns in (
    ("stable layout", prompts()),
    ("timestamp first", prompts(clock_first=True)),
    ("tools shuffled", prompts(shuffle=True)),
):
    cache = PagedCache.of_size(None, 16)
    for prompt in turns:
        cache.release(cache.commit(prompt))
    stats = cache.stats()
    rate = stats.hit_tokens / stats.prompt_tokens
    print(f"{layout:<16} {stats.prompt_tokens:>6} prompt {stats.hit_tokens:>6} cached {rate:>7.1%}")
