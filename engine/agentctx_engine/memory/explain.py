"""Why a hit ends where it does: every token of a prompt that is not reused gets one reason."""

from __future__ import annotations

from dataclasses import dataclass

from .prefix_cache import Lost, Match


@dataclass(frozen=True, slots=True)
class HitFacts:
    """What is known about one lookup; all counts in tokens, from the start of the prompt.

    num_tokens       the prompt
    hit              reused
    granularity      a hit is a multiple of this (1: to the token)
    full_hit         what full attention alone could have reused (≥ hit)
    remembered       equal to text computed under the same keys, whether or not it is still there
    elsewhere        equal to text computed under other keys
    forbidden        the request or the cache forbids reuse: ``hit`` would have been, and is not
    """

    num_tokens: int
    hit: int
    granularity: int
    full_hit: int
    remembered: int
    elsewhere: int
    forbidden: bool = False


def explain(facts: HitFacts) -> Match:
    """The hit with its reasons. They stand in the order of the cause list below, not of the tokens.

        |-- hit --|-- window --|-- evicted --|-- salt --|-- rounding --|-- first difference --|
                  full_hit     usable text   usable     equal text                            num_tokens
                                             elsewhere

    ``usable`` rounds to whole blocks and leaves the last token out; a prompt that is wholly known loses that one token
    to the whole-prompt rule, and what it costs beyond to rounding.
    """
    total = facts.num_tokens
    if not total:
        return Match(0)
    remembered = max(facts.remembered, facts.full_hit, facts.hit)
    equal = max(remembered, facts.elsewhere)

    def usable(tokens: int) -> int:
        limited = min(tokens, total - 1)
        return limited - limited % facts.granularity

    reached = facts.hit
    hit = 0 if facts.forbidden else reached
    lost = {Lost.DISABLED: reached - hit}
    for reason, end in (
        (Lost.WINDOW, facts.full_hit),
        (Lost.EVICTED, usable(remembered)),
        (Lost.SALT, usable(facts.elsewhere)),
    ):
        lost[reason] = max(0, end - reached)
        reached += lost[reason]
    whole_prompt = int(equal == total)
    lost[Lost.BLOCK_ROUNDING] = equal - whole_prompt - reached
    lost[Lost.WHOLE_PROMPT] = whole_prompt
    lost[Lost.FIRST_DIFFERENCE] = total - equal
    return Match(
        hit, tuple((why, count) for why, count in lost.items() if count), _stop(facts, lost, hit, equal)
    )


def _stop(facts: HitFacts, lost: dict[Lost, int], hit: int, equal: int) -> Lost:
    """The reason that, taken away, would have made the hit longer at its end."""
    for reason in (Lost.DISABLED, Lost.WINDOW, Lost.EVICTED, Lost.SALT):
        if lost[reason]:
            return reason
    if equal == hit:
        return Lost.FIRST_DIFFERENCE
    if equal == facts.num_tokens and facts.num_tokens - hit in (1, facts.granularity):
        return Lost.WHOLE_PROMPT
    return Lost.BLOCK_ROUNDING
