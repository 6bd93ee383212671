"""What a server lost although the request allowed it: the rules, each at its edges, without the requests around them."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from agentctx.diagnosis.breakpoints import Marker, blocks_since
from agentctx.diagnosis.breaks import Break
from agentctx.diagnosis.conversations import State
from agentctx.diagnosis.server import (
    Arrived,
    Server,
    asked_life,
    disproved,
    longest_life,
    server_of,
    shortfall,
)
from agentctx.usage import Usage

LLAMA, VLLM, UNKNOWN = Server("llama"), Server("vllm"), Server("unknown")
CLAUDE = server_of("anthropic.messages", "claude-sonnet-4-5", None, False)
OPENAI = server_of("openai.chat", "gpt-4.1", "https://api.openai.com/v1", False)


def mark(block: int, path: str = "messages[1].cache_control", life: str | None = None) -> Marker:
    return Marker(path, (2, 1, 0), block, life)


def earlier(
    prompt: int | None, *, at: float | None = 0.0, markers: tuple[int, ...] = (), **usage: int
) -> State:
    state = State(1, 1, 0, at, "", None, array("q"), array("q"), 0)
    state.usage = Usage(prompt=prompt, **usage)
    state.markers = [mark(block) for block in markers]
    return state


def arrived(
    cached: int | None, prompt: int | None = None, *, at: float | None = 10.0, **more: Any
) -> Arrived:
    blocks = more.pop("markers", ())
    return Arrived(Usage(prompt=prompt, cached=cached), at, [mark(block) for block in blocks], None, **more)


def word(server: Server, before: State, now: Arrived, *, others: int = 0) -> str | None:
    found = shortfall(server, before, now, None, 1.0, others)
    return None if found is None else found.word


# -- which server --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "model", "hint", "timings", "kind", "details"),
    [
        ("openai.chat", "m", None, True, "llama", {}),
        ("llama.completion", None, None, False, "llama", {}),
        ("openai.chat", "m", "llama-server -np 3", False, "llama", {"slots": 3}),
        (
            "openai.chat",
            "m",
            "llama.cpp, 2 slots, sliding window",
            False,
            "llama",
            {"slots": 2, "window": True},
        ),
        ("openai.chat", "m", "llama-server --parallel=8", False, "llama", {"slots": 8}),
        ("openai.chat", "m", "vllm --block-size 32", False, "vllm", {"block": 32}),
        ("openai.chat", "m", "vllm, hybrid model", False, "vllm", {"window": True, "block": None}),
        ("openai.chat", "m", "sglang page_size=1", False, "sglang", {"block": 1}),
        (
            "openai.chat",
            "m",
            "some proxy, 64-token blocks",
            False,
            "unknown",
            {"block": 64, "provider": None},
        ),
        ("openai.chat", "m", None, False, "unknown", {"block": None, "slots": None, "window": False}),
    ],
)
def test_a_server_is_known_by_its_api_its_answer_or_its_hint(
    api: str, model: str | None, hint: str | None, timings: bool, kind: str, details: dict[str, Any]
) -> None:
    server = server_of(api, model, hint, timings)
    assert server.kind == kind
    assert {name: getattr(server, name) for name in details} == details
    assert server.name == kind


def test_providers_are_known_by_model_and_address() -> None:
    assert (CLAUDE.kind, CLAUDE.name) == ("anthropic", "anthropic")
    assert (OPENAI.kind, OPENAI.name) == ("provider", "openai")
    assert server_of("anthropic.messages", "unheard-of", None, False).kind == "anthropic"
    assert server_of("openai.chat", "anthropic/claude-sonnet-4-5", None, False).kind == "anthropic"


# -- nothing to say --------------------------------------------------------------------------------------------------------


def test_nothing_is_claimed_where_a_count_is_missing() -> None:
    assert word(LLAMA, earlier(1000), arrived(None)) is None
    assert word(LLAMA, earlier(None), arrived(0)) is None
    unreported = earlier(1000)
    unreported.usage = None
    assert word(LLAMA, unreported, arrived(0)) is None
    assert word(CLAUDE, earlier(1000, written=990), arrived(0)) is None, "nothing was asked to be kept"


# -- llama-server --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "cached", "prompt", "found"),
    [
        (40, 1039, 1500, None),
        (40, 1035, 1500, None),  # the end of the turn, rendered otherwise
        (40, 1034, 1500, "retokenised"),
        (40, 992, 1500, "retokenised"),
        (40, 991, 1500, "server_evicted"),
        (1, 1000, 1500, None),
        (0, 980, 1500, None),  # a fiftieth
        (0, 979, 1500, "server_evicted"),
        (0, 999, 1000, None),  # the last token is always computed
        (40, 0, 1500, "server_evicted"),
    ],
)
def test_a_slot_holds_the_prompt_and_all_but_the_last_token_of_the_reply(
    output: int, cached: int, prompt: int, found: str | None
) -> None:
    assert word(LLAMA, earlier(1000, output=output), arrived(cached, prompt)) == found


def test_a_slot_that_others_used_was_taken() -> None:
    found = shortfall(replace(LLAMA, slots=2), earlier(1000), arrived(0, 1500), None, 1.0, 3)
    assert found is not None
    assert (found.word, found.allowed, found.cached) == ("slot_taken", 1000, 0)
    assert found.detail == "3 other conversations used 2 slots"
    found = shortfall(LLAMA, earlier(1000), arrived(0, 1500), None, 1.0, 3)
    assert found is not None
    assert found.detail == "3 other conversations used its slots"


def test_a_reply_that_was_not_sent_back_is_not_missed() -> None:
    now = arrived(1000, 1500, carries_reply=False)
    assert word(LLAMA, earlier(1000, output=400), now) is None
    assert word(LLAMA, earlier(1000, output=400), replace(now, carries_reply=True)) == "retokenised"


def test_a_prompt_that_shrank_although_the_request_grew_is_the_templates_doing() -> None:
    found = shortfall(UNKNOWN, earlier(5000), arrived(1000, 4900), None, 1.0, 0)
    assert found is not None
    assert (found.word, found.allowed, found.estimated) == ("template_made", 4900, True)
    assert word(UNKNOWN, earlier(5000), arrived(4644, 4900)) is None, "nearly all of it was reused"
    assert word(UNKNOWN, earlier(5000), arrived(4643, 4900)) == "template_made"
    assert word(UNKNOWN, earlier(5000), arrived(4900, 4968)) is None, "a little shorter is nothing"


# -- markers ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cached", "gap", "found"),
    [
        (3000, 10, None),
        (2940, 10, None),  # a fiftieth
        (2939, 10, "server_evicted"),
        (0, 300, "server_evicted"),
        (0, 301, "ttl_expired"),
        (0, None, "server_evicted"),
    ],
)
def test_what_was_stored_is_there_for_five_minutes(cached: int, gap: float | None, found: str | None) -> None:
    before = earlier(3010, cached=1000, written=2000, markers=(4,))
    assert word(CLAUDE, before, arrived(cached, 3400, at=gap, markers=(6,))) == found


def test_a_marker_may_ask_for_an_hour() -> None:
    before = earlier(3010, written=3000)
    before.markers = [mark(4, life="1h")]
    assert word(CLAUDE, before, arrived(0, 3400, at=3600.0, markers=(6,))) == "server_evicted"
    found = shortfall(CLAUDE, before, arrived(0, 3400, at=3601.0, markers=(6,)), None, 1.0, 0)
    assert found is not None
    assert (found.word, found.detail) == ("ttl_expired", "3601 s passed, life 3600 s")
    before.markers = [mark(2, life="1h"), mark(4)]
    assert word(CLAUDE, before, arrived(0, 3400, at=301.0, markers=(6,))) == "ttl_expired", "the shorter one"
    assert longest_life(CLAUDE, before.markers, None) == 3600
    assert longest_life(CLAUDE, [mark(4)], None) == 300
    assert longest_life(CLAUDE, [], None) is None
    assert longest_life(UNKNOWN, [mark(4)], None) is None


@pytest.mark.parametrize(("blocks", "found"), [(24, "server_evicted"), (25, "breakpoint_lookback")])
def test_the_server_looks_twenty_blocks_back(blocks: int, found: str) -> None:
    before = earlier(3010, written=3000, markers=(4,))
    assert word(CLAUDE, before, arrived(0, 3400, markers=(blocks,))) == found


def test_a_request_that_dropped_its_marker() -> None:
    before = earlier(3010, written=3000, markers=(4,))
    found = shortfall(CLAUDE, before, arrived(0, 3400), None, 1.0, 0)
    assert found is not None
    assert (found.word, found.place) == ("breakpoint_misplaced", "messages[1].cache_control")
    assert word(CLAUDE, before, arrived(1500, 3400)) is None, "half of it was read all the same"
    assert word(CLAUDE, before, arrived(1499, 3400)) == "breakpoint_misplaced"
    assert word(CLAUDE, earlier(3010, markers=(4,)), arrived(0, 3400)) is None


@pytest.mark.parametrize(
    ("prompt", "found"), [(256, None), (257, "below_minimum"), (1023, "below_minimum"), (1024, None)]
)
def test_what_is_below_the_minimum_is_not_stored(prompt: int, found: str | None) -> None:
    assert (
        word(CLAUDE, earlier(prompt, cached=0, written=0, markers=(4,)), arrived(0, 3400, markers=(6,)))
        == found
    )


def test_a_recording_does_not_tell_what_the_client_changed() -> None:
    before = earlier(3010, written=3000)
    found = shortfall(CLAUDE, before, arrived(0, 3400, rebuilt=True), None, 1.0, 0)
    assert found is not None
    assert (found.word, found.detail) == ("unexplained", "0 of 3,000 tokens reused")
    assert word(CLAUDE, before, arrived(0, 3400, at=301.0, rebuilt=True)) == "ttl_expired", (
        "that it does tell"
    )
    hour = earlier(3010, written=3000, written_1h=3000)
    assert word(CLAUDE, hour, arrived(0, 3400, at=301.0, rebuilt=True)) == "unexplained"


def test_blocks_between_markers() -> None:
    assert blocks_since([mark(4)], [mark(4)]) == 0
    assert blocks_since([mark(2), mark(4)], [mark(3), mark(9), mark(7)]) == 3
    assert blocks_since([mark(4)], [mark(3)]) is None
    assert blocks_since([], [mark(3)]) is None
    assert blocks_since([mark(3)], []) is None


# -- servers that cache by themselves ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "before", "cached", "found"),
    [
        (VLLM, 3001, 2992, None),
        (VLLM, 3001, 2694, None),  # 2,992 could have been reused; a tenth of it may be rendered otherwise
        (VLLM, 3001, 2692, "server_evicted"),
        (Server("vllm", block=1024), 3001, 0, None),  # two blocks are the grain of what can be told
        (Server("vllm", block=512), 3001, 0, "server_evicted"),
        (UNKNOWN, 3001, 2600, None),
        (UNKNOWN, 3001, 2500, "server_evicted"),
        (UNKNOWN, 900, 0, "below_minimum"),
        (UNKNOWN, 1200, 0, "server_evicted"),
        (OPENAI, 1900, 1792, None),
        (OPENAI, 1900, 0, "server_evicted"),
        (OPENAI, 900, 0, "below_minimum"),
        (OPENAI, 300, 0, None),
    ],
)
def test_rounding_and_a_tenth_are_allowed(
    server: Server, before: int, cached: int, found: str | None
) -> None:
    assert word(server, earlier(before), arrived(cached, before + 400)) == found


def test_what_was_ever_reused_is_not_below_the_minimum() -> None:
    before = earlier(900)
    before.reads = 128
    assert word(UNKNOWN, before, arrived(0, 1300)) == "server_evicted"
    assert word(UNKNOWN, earlier(900), arrived(128, 1300)) == "server_evicted"


def test_a_provider_forgets_after_its_time() -> None:
    before = earlier(1900)
    assert word(OPENAI, before, arrived(0, 2300, at=10_000.0)) == "ttl_expired"
    assert word(OPENAI, before, arrived(0, 2300, at=None)) == "server_evicted"
    assert longest_life(OPENAI, [], None) == OPENAI.provider.ttl_certain_s  # type: ignore[union-attr]
    asked = asked_life({"prompt_cache_options": {"ttl": "24h"}})
    assert asked == asked_life({"prompt_cache_retention": "24h"}) == "24h"
    assert asked_life({}) is asked_life({"prompt_cache_options": {"ttl": 5}}) is None


# -- behind a break of the client ------------------------------------------------------------------------------------------------


BROKEN = Break("message_edited", "messages[9]", "messages")


def behind(
    server: Server,
    cached: int,
    *,
    found: Break = BROKEN,
    share: float = 0.9,
    others: int = 0,
    prompt: int = 4000,
) -> str | None:
    lost = shortfall(server, earlier(prompt, markers=(4,)), arrived(cached, 4400), found, share, others)
    return None if lost is None else lost.word


def test_only_a_loss_far_beyond_the_clients_own_break_is_the_servers() -> None:
    assert behind(LLAMA, 3600) is None
    assert behind(LLAMA, 1800) is None, "half of what was allowed"
    assert behind(LLAMA, 1799) == "sliding_window"
    assert behind(LLAMA, 0, others=1) == "slot_taken"
    assert behind(LLAMA, 0, share=0.5) is None, "the client's break cost as much"
    assert behind(LLAMA, 0, share=0.6) == "sliding_window"
    assert behind(LLAMA, 0, prompt=280) is None, "too little to be worth a finding"
    assert behind(replace(VLLM, window=True), 0) == "sliding_window"
    assert behind(VLLM, 0) == "server_evicted"
    assert behind(CLAUDE, 0) is None, "what is read there depends on markers"


@pytest.mark.parametrize("zone", ["model", "params"])
def test_what_other_parameters_cost_is_not_known(zone: str) -> None:
    assert behind(LLAMA, 0, found=replace(BROKEN, zone=zone)) is None


def test_going_back_is_paid_again_only_where_a_slot_held_it() -> None:
    branch = replace(BROKEN, word="branch")
    assert behind(VLLM, 0, found=branch) is None
    assert behind(LLAMA, 0, found=branch) == "sliding_window"


# -- the server's count against a difference ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "cached", "share", "without"),
    [
        (1000, 1000, 0.5, True),
        (1000, 1400, 0.5, True),
        (1000, 1000, 0.95, True),  # fifty tokens that were reused all the same
        (1000, 999, 0.95, False),
        (1000, 1000, 0.99, False),  # ten tokens: it may lie behind the prompt's end
        (1000, 938, 0.5, True),  # 32 and three hundredths
        (1000, 937, 0.5, False),
        (1000, 950, 0.9, False),  # twice what is missing stands behind the difference, and no more
        (1000, 951, 0.9, True),
        (1000, 990, 0.93, True),
        (1000, 990, 0.94, False),
        (127, 127, 0.1, False),  # too short to tell
        (128, 128, 0.1, True),
    ],
)
def test_a_difference_that_cost_nothing_is_none(
    prompt: int, cached: int, share: float, without: bool
) -> None:
    usage = Usage(prompt=prompt + 100, cached=cached)
    assert disproved(earlier(prompt), usage, BROKEN, share) is without


def test_without_counts_a_difference_stands() -> None:
    assert not disproved(earlier(1000), None, BROKEN, 0.5)
    assert not disproved(earlier(1000), Usage(prompt=1100), BROKEN, 0.5)
    assert not disproved(earlier(None), Usage(prompt=1100, cached=1000), BROKEN, 0.5)
    assert not disproved(earlier(1000), Usage(prompt=1100, cached=1000), replace(BROKEN, returned=True), 0.5)
