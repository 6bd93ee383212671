"""Corner cases of llama-server's slots, each with the slot and the ``cache_n`` that must come out.

A scenario sends prompts through a driver and says what each must give. ``tests/memory`` runs them on SlotCache with
made-up replies, ``tests/real`` on a live server with its own: both must meet the same literal numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from agentctx_engine.memory.slot_settings import ServerSettings


class Driver(Protocol):
    """Sends a request; checks its answer; returns the reply's token ids.

    ``reply``: tokens to generate. ``slot``/``cache_n``: what must come out (``slot`` None: any). ``refused``: an error.
    """

    def __call__(
        self,
        prompt: list[int],
        *,
        reply: int,
        cache_n: int = 0,
        slot: int | None = None,
        refused: bool = False,
        **options: Any,
    ) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Scenario:
    """One corner case. ``model``: which of the tiny models (or memory kinds) it needs."""

    name: str
    model: str
    settings: ServerSettings
    steps: Callable[[Driver], None]


def text(name: int, count: int) -> list[int]:
    """``count`` token ids below 256; two names differ from the first token on."""
    return [(name + 37 * i * (i + name)) % 256 for i in range(count)]


_ONE = ServerSettings(n_slots=1, kv_unified=False, cache_ram_mib=0, n_ctx=4096)
_FOUR = ServerSettings(n_ctx=4096)
_FOUR_NO_RAM = ServerSettings(n_ctx=4096, cache_ram_mib=0)


def _whole_prompt_again(send: Driver) -> None:
    send(text(1, 100), reply=4)
    send(text(1, 100), reply=4, cache_n=99)


def _strict_prefix(send: Driver) -> None:
    send(text(1, 100), reply=4)
    send(text(1, 60), reply=4, cache_n=59)


def _last_generated_token(send: Driver) -> None:
    reply = send(text(1, 100), reply=8)
    send(text(1, 100) + reply + text(2, 20), reply=1, cache_n=107)


def _one_token_reply(send: Driver) -> None:
    reply = send(text(1, 100), reply=1)
    send(text(1, 100) + reply + text(2, 20), reply=1, cache_n=100)


def _reply_rendered_differently(send: Driver) -> None:
    reply = send(text(1, 100), reply=8)
    other = [*reply[:3], (reply[3] + 1) % 256, *reply[4:]]
    send(text(1, 100) + other + text(2, 20), reply=1, cache_n=103)


def _no_cache_prompt(send: Driver) -> None:
    send(text(1, 100), reply=4)
    send(text(1, 100), reply=4, cache_n=0, cache_prompt=False)
    send(text(1, 100), reply=4, cache_n=99)


def _first_request_takes_the_last_slot(send: Driver) -> None:
    send(text(1, 50), reply=2, slot=3)
    send(text(2, 50), reply=2, slot=2)
    send(text(3, 50), reply=2, slot=1)
    send(text(4, 50), reply=2, slot=0)
    send(text(5, 50), reply=2, slot=3)


def _similarity_of_exactly_a_tenth(send: Driver) -> None:
    send(text(1, 100), reply=2, slot=3)
    send(text(1, 10) + text(2, 90), reply=2, slot=2, cache_n=0)  # 10 of 100 is not above 0.1


def _similarity_just_above_a_tenth(send: Driver) -> None:
    send(text(1, 100), reply=2, slot=3)
    send(text(1, 11) + text(2, 89), reply=2, slot=3, cache_n=11)


def _two_slots_tie(send: Driver) -> None:
    send(text(1, 50) + text(2, 20), reply=2, slot=3)
    send(text(1, 50) + text(3, 20), reply=2, slot=1, id_slot=1)
    send(text(1, 50) + text(4, 20), reply=2, slot=1, cache_n=50)  # the first of the two


def _half_of_the_slot_is_kept(send: Driver) -> None:
    """A slot of 100 tokens of which exactly half stays is overwritten without being saved."""
    reply = send(text(1, 99), reply=2, slot=3)
    send(text(1, 50) + text(2, 100), reply=2, slot=3, cache_n=50)
    send(text(1, 99) + reply, reply=2, slot=3, cache_n=50)


def _less_than_half_of_the_slot_is_kept(send: Driver) -> None:
    """One token less, and it was saved: the conversation comes back whole."""
    reply = send(text(1, 99), reply=2, slot=3)
    send(text(1, 49) + text(2, 100), reply=2, slot=3, cache_n=49)
    send(text(1, 99) + reply, reply=2, slot=3, cache_n=100)


def _saved_but_not_looked_for(send: Driver) -> None:
    """The saved content is better, but the slot would lose too little of its own for the server to look."""
    reply = send(text(1, 99), reply=2, slot=3)
    send(text(1, 49) + text(2, 10), reply=2, slot=3, cache_n=49)
    send(text(1, 99) + reply, reply=2, slot=3, cache_n=49)


def _asked_for_slot_with_another_conversation(send: Driver) -> None:
    first = send(text(1, 100), reply=4, slot=3)
    send(text(2, 100), reply=4, slot=3, id_slot=3)
    send(text(1, 100) + first, reply=4, slot=2, cache_n=103)  # its content had been saved


def _asked_for_slot_without_ram_cache(send: Driver) -> None:
    first = send(text(1, 100), reply=4, slot=3)
    send(text(2, 100), reply=4, slot=3, id_slot=3)
    send(text(1, 100) + first, reply=4, slot=2, cache_n=0)


def _two_conversations_one_slot_no_ram(send: Driver) -> None:
    system = text(9, 200)
    one, two = system + text(1, 50), system + text(2, 50)
    for turn in range(3):
        one += send(one, reply=5, cache_n=0 if turn == 0 else 200) + text(3 + turn, 20)
        two += send(two, reply=5, cache_n=200) + text(6 + turn, 20)


def _idle_slot_comes_back_from_ram(send: Driver) -> None:
    one = send(text(1, 100), reply=5, slot=3)
    send(text(2, 100), reply=5, slot=2)  # the first conversation is saved and its slot cleared
    send(text(1, 100) + one + text(3, 10), reply=5, slot=1, cache_n=104)


def _entry_better_in_one_ratio_only(send: Driver) -> None:
    """A saved content that begins the prompt no further than the slot does is left alone, however short it is."""
    send(text(1, 60), reply=1, slot=3)
    send(text(2, 60), reply=1, slot=2)
    send(text(1, 60) + text(3, 60), reply=1, slot=1, cache_n=60)
    send(text(1, 60) + text(4, 500), reply=1, slot=1, cache_n=60)


def _unified_cells_full(send: Driver) -> None:
    """512 cells for all slots: idle slots are emptied from the first id on, and nothing is saved."""
    send(text(1, 200), reply=1, slot=3)
    send(text(2, 200), reply=1, slot=2)
    send(text(3, 200), reply=1, slot=1)  # empties slot 2
    send(text(1, 200), reply=1, slot=3, cache_n=199)
    send(text(2, 200), reply=1, slot=0, cache_n=0)


def _context_full(send: Driver) -> None:
    send(text(1, 512), reply=1, refused=True)
    reply = send(text(1, 505), reply=20)  # the reply is cut where the context ends
    assert len(reply) == 7
    send(text(1, 505) + reply[:6], reply=1, cache_n=510)


def _refused_prompt_counts_as_use(send: Driver) -> None:
    send(text(1, 50), reply=1, slot=3)
    send(text(2, 600), reply=1, refused=True)  # took slot 2 and gave it back
    send(text(3, 50), reply=1, slot=1)


def _n_completions_empty_their_slots(send: Driver) -> None:
    send(text(1, 100), reply=2, slot=3)
    send(text(2, 100), reply=2, slot=2)
    send(text(3, 100), reply=2, slot=1)
    send(text(3, 100) + text(4, 10), reply=2, slot=1, cache_n=100, completions=3)  # helped by slots 0 and 2
    send(text(2, 100), reply=2, slot=3, cache_n=0)
    send(text(1, 100), reply=2, slot=0, cache_n=0)


def _subagent_takes_the_slot(send: Driver) -> None:
    """A sub-agent with the same system prompt: 700 of its 740 tokens are similar, 64 % of the slot stay, nothing is saved."""
    system = text(9, 700)
    main = system + text(1, 375)
    reply = send(main, reply=8, slot=3)
    send(system + text(2, 40), reply=8, slot=3, cache_n=700)
    following = main + reply + text(3, 29)
    assert len(following) == 1112
    send(following, reply=8, slot=3, cache_n=700)


def _subagent_with_a_slot_of_its_own(send: Driver) -> None:
    system = text(9, 700)
    main = system + text(1, 375)
    reply = send(main, reply=8, slot=3, id_slot=3)
    send(system + text(2, 40), reply=8, slot=2, id_slot=2, cache_n=0)
    send(main + reply + text(3, 29), reply=8, slot=3, id_slot=3, cache_n=1082)


def _window_prefix_shorter_than_the_window(send: Driver) -> None:
    send(text(1, 500), reply=1)
    send(text(1, 60) + text(2, 40), reply=1, cache_n=0)  # 60 ≤ 64: it always needs a checkpoint


def _window_extension(send: Driver) -> None:
    reply = send(text(1, 3000), reply=8)
    send(text(1, 3000) + reply + text(2, 50), reply=1, cache_n=3007)


def _window_checkpoint_gives_one_less(send: Driver) -> None:
    send(text(1, 1500), reply=300)  # checkpoints at 1500 − 4 − 512 and at 1500 − 4; 768 cells
    send(text(1, 990) + text(2, 50), reply=1, cache_n=983)


def _hybrid_extension(send: Driver) -> None:
    reply = send(text(1, 300), reply=8)
    send(text(1, 300) + reply[:7] + text(2, 50), reply=1, cache_n=307)


def _hybrid_whole_prompt(send: Driver) -> None:
    send(text(1, 300), reply=1)
    send(text(1, 300), reply=1, cache_n=296)  # the checkpoint four tokens before the end


def _hybrid_reasoning_stripped(send: Driver) -> None:
    reply = send(text(1, 300), reply=20)
    send(text(1, 300) + reply[10:] + text(2, 30), reply=1, cache_n=296)


def _hybrid_without_checkpoints(send: Driver) -> None:
    reply = send(text(1, 300), reply=20)
    send(text(1, 300) + reply[10:] + text(2, 30), reply=1, cache_n=0)


def _cache_reuse_shifts_chunks(send: Driver) -> None:
    send(text(1, 100) + text(2, 40) + text(3, 100), reply=1)
    send(text(1, 100) + text(3, 100) + text(4, 10), reply=1, cache_n=200)


def _cache_reuse_needs_long_chunks(send: Driver) -> None:
    send(text(1, 100) + text(2, 40) + text(3, 15), reply=1)
    send(text(1, 100) + text(3, 15) + text(4, 10), reply=1, cache_n=100)


SCENARIOS = (
    Scenario("whole prompt again", "full attention", _ONE, _whole_prompt_again),
    Scenario("strict prefix of the slot", "full attention", _ONE, _strict_prefix),
    Scenario("last generated token", "full attention", _ONE, _last_generated_token),
    Scenario("reply of one token", "full attention", _ONE, _one_token_reply),
    Scenario("reply rendered differently", "full attention", _ONE, _reply_rendered_differently),
    Scenario("cache_prompt false", "full attention", _ONE, _no_cache_prompt),
    Scenario("ties go to the last slot", "full attention", _FOUR_NO_RAM, _first_request_takes_the_last_slot),
    Scenario("similarity exactly 0.1", "full attention", _FOUR_NO_RAM, _similarity_of_exactly_a_tenth),
    Scenario("similarity just above 0.1", "full attention", _FOUR_NO_RAM, _similarity_just_above_a_tenth),
    Scenario("two equally similar slots", "full attention", _FOUR_NO_RAM, _two_slots_tie),
    Scenario("half of the slot kept", "full attention", _FOUR, _half_of_the_slot_is_kept),
    Scenario("less than half kept", "full attention", _FOUR, _less_than_half_of_the_slot_is_kept),
    Scenario("saved, not looked for", "full attention", _FOUR, _saved_but_not_looked_for),
    Scenario("id_slot saves", "full attention", _FOUR, _asked_for_slot_with_another_conversation),
    Scenario("id_slot without RAM cache", "full attention", _FOUR_NO_RAM, _asked_for_slot_without_ram_cache),
    Scenario("two conversations thrash", "full attention", _ONE, _two_conversations_one_slot_no_ram),
    Scenario("idle slot from RAM", "full attention", _FOUR, _idle_slot_comes_back_from_ram),
    Scenario("entry not better in both", "full attention", _FOUR, _entry_better_in_one_ratio_only),
    Scenario(
        "unified cells full",
        "full attention",
        ServerSettings(n_ctx=512, cache_ram_mib=0),
        _unified_cells_full,
    ),
    Scenario(
        "context full",
        "full attention",
        ServerSettings(n_slots=1, kv_unified=False, cache_ram_mib=0, n_ctx=512),
        _context_full,
    ),
    Scenario(
        "refused prompt",
        "full attention",
        ServerSettings(n_ctx=512, cache_ram_mib=0),
        _refused_prompt_counts_as_use,
    ),
    Scenario("n completions", "full attention", _FOUR_NO_RAM, _n_completions_empty_their_slots),
    Scenario("sub-agent takes the slot", "full attention", _FOUR, _subagent_takes_the_slot),
    Scenario(
        "sub-agent with id_slot",
        "full attention",
        ServerSettings(n_ctx=4096, cache_idle_slots=False),
        _subagent_with_a_slot_of_its_own,
    ),
    Scenario("prefix within the window", "sliding window", _ONE, _window_prefix_shorter_than_the_window),
    Scenario("window, extension", "sliding window", _ONE, _window_extension),
    Scenario("window, checkpoint", "sliding window", _ONE, _window_checkpoint_gives_one_less),
    Scenario("hybrid, extension", "hybrid", _ONE, _hybrid_extension),
    Scenario("hybrid, whole prompt", "hybrid", _ONE, _hybrid_whole_prompt),
    Scenario("hybrid, reasoning stripped", "hybrid", _ONE, _hybrid_reasoning_stripped),
    Scenario(
        "hybrid without checkpoints",
        "hybrid",
        ServerSettings(n_slots=1, kv_unified=False, cache_ram_mib=0, n_ctx=4096, ctx_checkpoints=0),
        _hybrid_without_checkpoints,
    ),
    Scenario(
        "cache-reuse",
        "full attention",
        ServerSettings(n_slots=1, kv_unified=False, cache_ram_mib=0, n_ctx=4096, cache_reuse=16),
        _cache_reuse_shifts_chunks,
    ),
    Scenario(
        "cache-reuse, short chunk",
        "full attention",
        ServerSettings(n_slots=1, kv_unified=False, cache_ram_mib=0, n_ctx=4096, cache_reuse=16),
        _cache_reuse_needs_long_chunks,
    ),
)
