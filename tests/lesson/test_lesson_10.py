"""Lesson 10: llama-server's cache_n over the turns of an agent, append-only and with a clock in the system prompt.

The lesson's figures were read off a server with one slot and no RAM cache. The token ids here are made up; the
lengths and the places where two turns differ are the lesson's.
"""

from __future__ import annotations

from agentctx_engine.memory.slot_cache import SlotCache
from agentctx_engine.memory.slot_settings import ServerSettings

SETTINGS = ServerSettings(n_slots=1, kv_unified=False, cache_ram_mib=0, n_ctx=4096)
MAX_TOKENS = 8
TEMPLATE = [151644, 8948, 198]  # <|im_start|>system\n begins every prompt of the template
CLOCK = list(range(500, 507))  # "Time: 10:0", the same every turn


def conversation(head: list[int], first_prompt: int) -> list[int]:
    """The first prompt: the head, then text up to ``first_prompt`` tokens."""
    return head + list(range(1000, 1000 + first_prompt - len(head)))


def turns(cache: SlotCache, prompts: list[list[int]], replies: list[list[int]]) -> list[tuple[int, int, int]]:
    """Prompt tokens, cache_n and prompt_n of each turn."""
    rows = []
    for prompt, reply in zip(prompts, replies, strict=True):
        lease = cache.serve(prompt, reply)
        assert lease.match.hit_tokens + sum(tokens for _, tokens in lease.match.lost) == len(prompt)
        rows.append((len(prompt), lease.answer.cache_n, lease.answer.prompt_n))
    cache.check()
    return rows


def replies() -> list[list[int]]:
    return [list(range(2000 + 100 * turn, 2000 + 100 * turn + MAX_TOKENS)) for turn in range(4)]


def append_only() -> list[list[int]]:
    """Each turn: the prompt before, its reply, 14 tokens of template and new message."""
    prompts = [conversation(TEMPLATE, 34)]
    for turn, reply in enumerate(replies()[:3]):
        prompts.append(prompts[-1] + reply + list(range(3000 + 100 * turn, 3014 + 100 * turn)))
    return prompts


def with_clock() -> list[list[int]]:
    """The same turns with the minute in the system prompt, behind ten tokens that stay."""
    prompts = []
    body: list[int] = []
    for turn in range(4):
        if turn:
            body += replies()[turn - 1] + list(range(3000 + 100 * turn, 3014 + 100 * turn))
        else:
            body = list(range(4000, 4000 + 46 - len(TEMPLATE) - len(CLOCK) - 1))
        prompts.append([*TEMPLATE, *CLOCK, 600 + turn, *body])
    return prompts


def test_append_only_turns_and_a_clock_in_the_system_prompt() -> None:
    cache = SlotCache(SETTINGS)
    rows = turns(cache, append_only(), replies())
    assert rows == [(34, 0, 34), (56, 41, 15), (78, 63, 15), (100, 85, 15)]
    assert [cached for _, cached, _ in rows[1:]] == [length + MAX_TOKENS - 1 for length, _, _ in rows[:3]]
    assert sum(processed for *_, processed in rows) == 79

    clock_rows = turns(cache, with_clock(), replies())
    assert clock_rows == [(46, 3, 43), (68, 10, 58), (90, 10, 80), (112, 10, 102)]
    assert sum(processed for *_, processed in clock_rows) == 283
