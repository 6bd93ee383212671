"""A window over the newest turns."""

from __future__ import annotations

from agentctx.errors import UsageError
from agentctx.history import History, Splice
from agentctx.policies.base import EditingPolicy
from agentctx.policies.shape import turn_starts
from agentctx.policies.tokens import TokenCounts


class SlidingWindow(EditingPolicy):
    """Keep the task and the newest ``n`` turns. A turn is a model's answer with the results that follow it.

    Once the window is full every turn moves its front, and everything behind the task is processed again.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        if n < 1:
            raise UsageError(f"n must be at least 1, not {n}")
        self.n = n

    @property
    def name(self) -> str:
        return f"window:{self.n}"

    def edit(self, history: History, counts: TokenCounts) -> None:
        """Cut the turns that left the window."""
        starts = turn_starts(history)
        if len(starts) > self.n:
            history.compact("removed", [Splice(starts[0], starts[-self.n])])
