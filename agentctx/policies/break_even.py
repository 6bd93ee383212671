"""Compact when it pays, and not before.

A token that is read from the cache costs ``c`` of one that is processed. At some turn, let

- ``D`` be the tokens between the task and the newest turns, which a summary would replace,
- ``K`` the tokens of the newest turns, which stay and are processed again behind the summary,
- ``S`` the tokens of the summary, ``P`` those of the whole prompt,
- ``H`` the turns that are expected to follow.

Compacting now costs, more than not compacting, the price of a rewrite

    W = S + (1 - c) K + (c P + S)

(the summary is processed, the newest turns are processed instead of read; the bracket is the request for the summary,
which reads the whole prompt from the cache and writes S tokens). Every later turn then reads D - S tokens less, which
saves c (D - S). So it pays within the horizon when

    H c (D - S) > W.                                                          (1)

Paying is not enough: compacting at the first turn at which (1) holds gains nothing over waiting. If a turn adds g tokens
and one compacts every n turns, the cost a turn is W / n for rewrites and c g n / 2 for carrying what could have gone; it
is least at n = sqrt(2 W / (c g)), and there both terms are equal: what was paid for carrying since the last rewrite is the
price of a rewrite. That needs no knowledge of g, holds when g changes, and is the rule here:

    sum over the turns since the last rewrite of c (D_t - S) >= W.            (2)

By (2) no more is ever spent on rewrites than was spent on carrying, and carrying costs no more than it does without any
compaction. So whatever the session does, the whole costs less than twice what append-only costs: a wrong guess is bounded,
which is what (1) alone, with a guessed H, is not. Without a given horizon H is the number of turns so far: a session that
has lasted n turns is expected to last n more.
"""

from __future__ import annotations

from agentctx.errors import UsageError
from agentctx.history import Compaction, History
from agentctx.policies.base import EditingPolicy, SummaryPlan
from agentctx.policies.shape import task_end, turn_starts
from agentctx.policies.summaries import Asking, ExtractiveStandIn, Summarizer
from agentctx.policies.summarize import newest_turns
from agentctx.policies.tokens import TokenCounts


class BreakEven(EditingPolicy):
    """Summarize the old turns when rules (1) and (2) above hold.

    ``ratio`` is c, between 0 (excluded: what is free to carry is never worth a rewrite) and 1. ``keep`` tokens of the newest
    turns stay. ``horizon`` is H, ``None`` to learn it from the session.
    """

    def __init__(
        self,
        ratio: float = 0.1,
        keep: int = 4000,
        tokens: int = 300,
        horizon: int | None = None,
        *,
        summarizer: Summarizer | None = None,
        asking: Asking = "own-prefix",
    ) -> None:
        super().__init__()
        if not 0 < ratio <= 1 or keep < 0 or tokens < 1 or (horizon is not None and horizon < 1):
            raise UsageError(
                f"ratio {ratio}, keep {keep}, tokens {tokens}, horizon {horizon}: need 0 < ratio <= 1, keep >= 0, "
                "tokens >= 1 and horizon >= 1"
            )
        self.ratio, self.keep, self.tokens, self.horizon = ratio, keep, tokens, horizon
        self.summarizer, self.asking = summarizer or ExtractiveStandIn(), asking

    @property
    def name(self) -> str:
        end = "" if self.horizon is None else f",{self.horizon}"
        return f"break-even:{self.ratio:g},{self.keep},{self.tokens}{end}"

    def plan(self, history: History, counts: TokenCounts) -> SummaryPlan | None:
        """A summary when the rewrite is earned and will pay."""
        starts = turn_starts(history)
        if len(starts) < 2:
            return None
        sums = counts.sums(history)
        start = task_end(history)
        end = newest_turns(starts, sums, self.keep)
        old, kept = sums[end] - sums[start], sums[-1] - sums[end]
        saved = self.ratio * (old - self.tokens)
        price = self.rewrite_price(kept, counts.prompt(history))
        horizon = history.turns if self.horizon is None else self.horizon
        if saved <= 0 or horizon * saved <= price:
            return None
        if self._carried(history, sums, start) < price:
            return None
        return SummaryPlan(start, end, self.tokens, self.summarizer, self.asking)

    def rewrite_price(self, kept: int, prompt: int) -> float:
        """W: what a compaction costs now, in processed tokens."""
        request = self.ratio * prompt if self.asking == "own-prefix" else prompt
        return self.tokens + (1 - self.ratio) * kept + request + self.tokens

    def _carried(self, history: History, sums: list[int], start: int) -> float:
        """What was paid for carrying removable tokens since the last rewrite.

        Read off the history at every turn instead of kept in a counter, so that a resumed session decides alike.
        """
        last = next(
            (
                e.at
                for e in reversed(history.events)
                if isinstance(e, Compaction) and e.rewrites_at is not None
            ),
            0,
        )
        shift = len(history) - len(history.visible)
        paid = 0
        for turn in range(history.turns, 0, -1):
            end = history.turn_end(turn)
            if end < last:
                break
            removable = sums[end - shift] - sums[start] - self.keep - self.tokens
            if removable <= 0:
                break
            paid += removable
        return self.ratio * paid
