"""Policies that shorten a conversation by its tool results."""

from __future__ import annotations

from agentctx.errors import UsageError
from agentctx.history import History, Splice
from agentctx.messages import Message
from agentctx.policies.base import EditingPolicy
from agentctx.policies.shape import results, without_results
from agentctx.policies.tokens import TokenCounts

PLACEHOLDER = "[result cleared to save space]"


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


class ClearResults(EditingPolicy):
    """Keep the newest ``n`` tool results; the text of older ones gives way to a placeholder, in place.

    Calls and results keep their places and ids. With ``at_least`` > 0 nothing is cleared until that many tokens
    can go at once, so that the rewrite is paid rarely.
    """

    def __init__(self, n: int, at_least: int = 0, placeholder: str = PLACEHOLDER) -> None:
        super().__init__()
        self.n = _at_least("n", n, 0)
        self.at_least = _at_least("at_least", at_least, 0)
        self.placeholder = placeholder

    @property
    def name(self) -> str:
        return f"clear-results:{self.n}" + (f",{self.at_least}" if self.at_least else "")

    def edit(self, history: History, counts: TokenCounts) -> None:
        """Clear what is too old, if it is enough."""
        positions = results(history)
        old = positions[: max(0, len(positions) - self.n)]
        cleared = [position for position in old if history.visible[position].content != self.placeholder]
        if not cleared:
            return
        splices = [
            Splice(position, position + 1, (_cleared(history.visible[position], self.placeholder),))
            for position in cleared
        ]
        if self.at_least:
            gain = sum(
                counts.message(history.visible[splice.start]) - counts.message(splice.messages[0])
                for splice in splices
            )
            if gain < self.at_least:
                return
        history.compact("cleared", splices)


def _cleared(message: Message, placeholder: str) -> Message:
    return message.model_copy(update={"content": placeholder, "notes": ()})


def _at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise UsageError(f"{name} must be at least {least}, not {value}")
    return value
