"""Budgets of a request log: how much may be paid again, how much has to be reused, how often history may be compacted."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from agentctx.diagnosis import TurnTokens
from agentctx.errors import UsageError

_COMPACTIONS = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Budgets:
    """What a log is held against; None: no such budget. Tokens, but for ``hit_rate`` (0 to 1).

    ``rework_turn``, ``rework_session``: tokens that breaks may make a server compute again, in one turn and in one
    conversation. ``hit_rate``: share of prompt tokens that has to be reused, per conversation; its first turn, which
    nothing could serve, doesn't count. ``compactions``: (n, k): at most n in any k consecutive turns.
    ``stable_prefix``: leading tokens that every turn has to have in common with the one it goes on from.
    """

    rework_turn: int | None = None
    rework_session: int | None = None
    hit_rate: float | None = None
    compactions: tuple[int, int] | None = None
    stable_prefix: int | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, entry.name) is not None for entry in fields(self))

    @property
    def limits_rework(self) -> bool:
        """Whether breaks are allowed up to a price."""
        return self.rework_turn is not None or self.rework_session is not None


NO_BUDGETS = Budgets()


def parse_compactions(text: str) -> tuple[int, int]:
    """``1/50``: one compaction in any 50 consecutive turns. Raises ``UsageError``."""
    match = _COMPACTIONS.fullmatch(text.strip())
    if match is None or int(match.group(2)) < 1:
        raise UsageError(f"compactions {text!r}: write how many in how many turns, such as 1/50")
    return int(match.group(1)), int(match.group(2))


def parse_rate(text: str) -> float:
    """``0.9`` or ``90%``. Raises ``UsageError``."""
    percent = text.strip().endswith("%")
    try:
        rate = float(text.strip().removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        raise UsageError(f"hit rate {text!r}: write a share such as 0.9 or 90%")
    return rate


@dataclass(frozen=True, slots=True)
class Overrun:
    """A budget that a log doesn't keep, and where. ``value`` is what was found, ``limit`` what is allowed."""

    budget: str
    limit: float
    value: float
    conversation: int
    place: str

    def __str__(self) -> str:
        if self.budget == "hit_rate":
            return f"hit rate {self.value:.1%}, at least {self.limit:.1%} wanted, in {self.place}"
        text = {
            "rework_turn": "{:,.0f} tokens paid again in one turn, {:,.0f} allowed, at {}",
            "rework_session": "{:,.0f} tokens paid again in the conversation, {:,.0f} allowed, in {}",
            "compactions": "{:,.0f} compactions, {:,.0f} allowed, at {}",
            "stable_prefix": "only the first {:,.0f} tokens stayed, {:,.0f} wanted, at {}",
        }[self.budget]
        return text.format(self.value, self.limit, self.place)


@dataclass(slots=True)
class _Sums:
    """What a conversation comes to. ``place``: where it begins."""

    place: str
    prompt: int = 0
    reused: int = 0
    paid_again: int = 0
    compacted: deque[int] = field(default_factory=deque)


class BudgetCheck:
    """Holds the turns of one log against budgets, one by one, in memory that depends on its conversations only."""

    def __init__(self, budgets: Budgets) -> None:
        self.budgets = budgets
        self.unknown: set[str] = set()
        """Budgets that could not be evaluated: the log has no token counts and there is no target that counts."""
        self._sums: dict[int, _Sums] = {}
        self._overruns: list[Overrun] = []

    def take(self, turn: TurnTokens) -> None:
        """Take in the next turn of the log."""
        sums = self._sums.setdefault(turn.conversation, _Sums(turn.place))
        self._rework(turn, sums)
        self._compactions(turn, sums)
        self._stable(turn)
        if turn.turn == 1:
            return
        if turn.prompt is not None and turn.reused is not None:
            sums.prompt += turn.prompt
            sums.reused += turn.reused
        elif self.budgets.hit_rate is not None:
            self.unknown.add("hit_rate")

    def overruns(self) -> list[Overrun]:
        """All budgets that weren't kept, turn by turn and then by conversation."""
        return [*self._overruns, *self._by_conversation()]

    def _found(self, budget: str, limit: float, value: float, turn: TurnTokens) -> None:
        self._overruns.append(Overrun(budget, limit, value, turn.conversation, turn.place))

    def _rework(self, turn: TurnTokens, sums: _Sums) -> None:
        limit = self.budgets.rework_turn
        if turn.paid_again is None:
            if self.budgets.limits_rework:
                self.unknown.add("rework")
            return
        sums.paid_again += turn.paid_again
        if limit is not None and turn.paid_again > limit:
            self._found("rework_turn", limit, turn.paid_again, turn)

    def _compactions(self, turn: TurnTokens, sums: _Sums) -> None:
        if self.budgets.compactions is None or turn.cause != "compaction":
            return
        allowed, window = self.budgets.compactions
        sums.compacted.append(turn.turn)
        while sums.compacted[0] <= turn.turn - window:
            sums.compacted.popleft()
        if len(sums.compacted) > allowed:
            self._found("compactions", allowed, len(sums.compacted), turn)

    def _stable(self, turn: TurnTokens) -> None:
        wanted = self.budgets.stable_prefix
        if wanted is None or turn.turn == 1:
            return
        if turn.stable is None:
            return  # a branch: what it shares is its choice
        if turn.stable < wanted and turn.cause is not None:
            self._found("stable_prefix", wanted, turn.stable, turn)

    def _by_conversation(self) -> Iterator[Overrun]:
        for number, sums in self._sums.items():
            limit, wanted = self.budgets.rework_session, self.budgets.hit_rate
            if limit is not None and sums.paid_again > limit:
                yield Overrun("rework_session", limit, sums.paid_again, number, self._name(number, sums))
            if wanted is not None and sums.prompt and sums.reused < wanted * sums.prompt:
                rate = sums.reused / sums.prompt
                yield Overrun("hit_rate", wanted, rate, number, self._name(number, sums))

    @staticmethod
    def _name(number: int, sums: _Sums) -> str:
        return f"conversation {number} from {sums.place}"
