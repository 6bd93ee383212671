"""What all policies share: seal, edit, build the request, say what was dropped."""

from __future__ import annotations

from abc import ABC, abstractmethod

from agentctx.history import Compaction, History
from agentctx.policies.policy import CountTokens, Dropped, Turn
from agentctx.policies.tokens import TokenCounts


class EditingPolicy(ABC):
    """A policy that decides once a turn which compactions to record, and then sends what is visible."""

    def __init__(self) -> None:
        self._counts: TokenCounts | None = None
        self._dropped: tuple[Dropped, ...] = ()
        self._known: dict[int, Dropped] = {}
        self._events = 0

    @property
    @abstractmethod
    def name(self) -> str:
        """The policy as a spec string, parameters included."""

    @abstractmethod
    def edit(self, history: History, counts: TokenCounts) -> None:
        """Record the compactions of this turn, if any. The history is sealed."""

    def turn(self, history: History, count: CountTokens) -> Turn:
        """The request for the next model call. ``count`` gives the tokens of a text."""
        counts = self._counts
        if counts is None:
            counts = self._counts = TokenCounts(count)
        history.seal()
        before = len(history.events)
        self.edit(history, counts)
        return self._answer(history, counts, before, None)

    def _answer(self, history: History, counts: TokenCounts, before: int, problem: str | None) -> Turn:
        new = [event for event in history.events[before:] if isinstance(event, Compaction)]
        rewrites = [event.rewrites_at for event in new if event.rewrites_at is not None]
        return Turn(
            request=history.request(),
            dropped=self._all_dropped(history, counts),
            rewrites_at=min(rewrites) if rewrites else None,
            compacted=bool(rewrites),
            stand_in=any(event.stand_in for event in history.events if isinstance(event, Compaction)),
            problem=problem,
        )

    def _all_dropped(self, history: History, counts: TokenCounts) -> tuple[Dropped, ...]:
        if len(history.events) != self._events:
            self._events = len(history.events)
            known = self._known
            for index, how in history.fates.items():
                if index not in known or known[index].how != how:
                    known[index] = Dropped(index, counts.message(history[index]), how)
            self._dropped = tuple(known[index] for index in sorted(known))
        return self._dropped
