"""Lesson 12: what a sliding-window model can reuse behind a llama-server, with checkpoints and with --swa-full."""

from __future__ import annotations

from agentctx_engine.memory.slot_cache import SlotCache, SlotLease
from agentctx_engine.memory.slot_prompt import find_checkpoint
from agentctx_engine.memory.slot_settings import ModelMemory, ServerSettings

WINDOW = 128
SHARED = list(range(350))
LONG = SHARED + list(range(1000, 2491))
SHORT = [*SHARED, 5000, 5001, 5002, 5003]


def settings(*, ctx_checkpoints: int = 32, swa_full: bool = False) -> ServerSettings:
    return ServerSettings(
        n_slots=1,
        kv_unified=False,
        n_ctx=4096,
        cache_ram_mib=0,
        ctx_checkpoints=ctx_checkpoints,
        swa_full=swa_full,
    )


def serve_both(cache: SlotCache) -> tuple[SlotLease, SlotLease]:
    first, second = cache.serve(LONG, [7]), cache.serve(SHORT, [7])
    cache.check()
    return first, second


def test_sizes() -> None:
    assert (len(LONG), len(SHORT)) == (1841, 354)
    assert settings().window_cells(ModelMemory(window=WINDOW)) == 768


def test_the_server_leaves_two_checkpoints_and_keeps_768_positions() -> None:
    cache = SlotCache(settings(), ModelMemory(window=WINDOW))
    cache.serve(LONG, [7])
    (slot,) = cache.server.slots
    kept = [(checkpoint.oldest, checkpoint.newest) for checkpoint in slot.prompt.checkpoints]
    assert kept == [(557, 1324), (1069, 1836)]
    assert cache.server.memory.oldest(0) == 1073
    threshold = len(SHARED) - WINDOW
    assert threshold == 222
    assert find_checkpoint(slot.prompt.checkpoints, len(SHARED), threshold) is None


def test_a_prefix_far_behind_is_computed_again() -> None:
    for most in (0, 32):
        first, second = serve_both(SlotCache(settings(ctx_checkpoints=most), ModelMemory(window=WINDOW)))
        assert (first.answer.cache_n, first.answer.prompt_n) == (0, 1841)
        assert (second.answer.cache_n, second.answer.prompt_n) == (0, 354)
        assert [(reason.value, tokens) for reason, tokens in second.match.lost] == [
            ("window", 350),
            ("first-difference", 4),
        ]


def test_full_size_local_caches_reuse_the_prefix() -> None:
    cache = SlotCache(settings(ctx_checkpoints=0, swa_full=True), ModelMemory(window=WINDOW))
    _, second = serve_both(cache)
    assert (second.answer.cache_n, second.answer.prompt_n) == (350, 4)


def test_an_append_only_follow_up_reuses_everything() -> None:
    cache = SlotCache(settings(), ModelMemory(window=WINDOW))
    cache.serve(LONG, [7])
    follow_up = cache.serve([*LONG, 7, 8, 9], [7])
    assert follow_up.answer.cache_n == 1841
    assert len(LONG) - WINDOW == 1713
