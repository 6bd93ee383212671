"""Policies that shorten a conversation by its tool results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from agentctx.errors import UsageError
from agentctx.history import History, Splice
from agentctx.messages import Message
from agentctx.policies.base import EditingPolicy
from agentctx.policies.shape import results, turn_starts, without_results
from agentctx.policies.tokens import TokenCounts

PLACEHOLDER = "[result cleared to save space]"
_FIRST_LINE = 80  # characters of a masked result that stay readable


class KeepLastResults(EditingPolicy):
    """Keep the newest ``n`` tool results; older ones go, each together with the call that it answers.

    From the turn at which result n + 1 arrives, every turn cuts at the front of the conversation, and everything
    behind the cut is processed again.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = _at_least("n", n, 1)

    @property
    def name(self) -> str:
        return f"keep-last:{self.n}"

    def edit(self, history: History, counts: TokenCounts) -> None:
        """Drop what is too old."""
        old = results(history)[: -self.n]
        if old:
            history.compact("removed", without_results(history.visible, old))


class InPlace(EditingPolicy):
    """A policy that shortens old results where they stand: calls and results keep their places and ids.

    Nothing is done until at least ``at_least`` tokens can go at once, so that the rewrite is paid rarely. A result
    whose replacement would be no shorter stays.
    """

    def __init__(self, at_least: int) -> None:
        super().__init__()
        self.at_least = _at_least("at_least", at_least, 0)

    @abstractmethod
    def old(self, history: History) -> Sequence[int]:
        """Positions of the results that are old enough."""

    @abstractmethod
    def replacement(self, message: Message, tokens: int) -> str:
        """The text that a result of so many tokens gives way to."""

    def edit(self, history: History, counts: TokenCounts) -> None:
        """Shorten what is old enough, if it is enough."""
        visible, origins, fates = history.visible, history.origins, history.fates
        splices: list[Splice] = []
        gain = 0
        for position in self.old(history):
            if fates.get(origins[position]) == "cleared":
                continue
            message = visible[position]
            tokens = counts.message(message)
            text = self.replacement(message, tokens)
            shorter = message.model_copy(update={"content": text, "notes": ()})
            if counts.message(shorter) < tokens:
                splices.append(Splice(position, position + 1, (shorter,)))
                gain += tokens - counts.message(shorter)
        if splices and gain >= self.at_least:
            history.compact("cleared", splices)


class ClearResults(InPlace):
    """Keep the newest ``n`` tool results; the text of older ones gives way to a placeholder."""

    def __init__(self, n: int, at_least: int = 0, *, placeholder: str = PLACEHOLDER) -> None:
        super().__init__(at_least)
        self.n = _at_least("n", n, 0)
        self.placeholder = placeholder

    @property
    def name(self) -> str:
        return f"clear-results:{self.n}" + (f",{self.at_least}" if self.at_least else "")

    def old(self, history: History) -> Sequence[int]:
        """All results but the newest ``n``."""
        positions = results(history)
        return positions[: max(0, len(positions) - self.n)]

    def replacement(self, message: Message, tokens: int) -> str:
        """The placeholder."""
        return self.placeholder


class MaskObservations(InPlace):
    """Results of all but the newest ``n`` turns are masked: their first line and their length stay."""

    def __init__(self, n: int, at_least: int = 0) -> None:
        super().__init__(at_least)
        self.n = _at_least("n", n, 1)

    @property
    def name(self) -> str:
        return f"mask:{self.n}" + (f",{self.at_least}" if self.at_least else "")

    def old(self, history: History) -> Sequence[int]:
        """Results before the newest ``n`` turns."""
        starts = turn_starts(history)
        if len(starts) <= self.n:
            return ()
        end = starts[-self.n]
        return [position for position in results(history) if position < end]

    def replacement(self, message: Message, tokens: int) -> str:
        """First line and length."""
        first = next((line.strip() for line in message.text.splitlines() if line.strip()), "")
        return f"{first[:_FIRST_LINE]} [masked: {tokens} tokens]"


def _at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise UsageError(f"{name} must be at least {least}, not {value}")
    return value
