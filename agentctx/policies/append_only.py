"""Send everything: the policy that never breaks a prefix."""

from __future__ import annotations

from agentctx.history import History
from agentctx.policies.base import EditingPolicy
from agentctx.policies.tokens import TokenCounts


class AppendOnly(EditingPolicy):
    """The whole log, every turn. Compactions that the history already holds are kept."""

    @property
    def name(self) -> str:
        return "append-only"

    def edit(self, history: History, counts: TokenCounts) -> None:
        """Nothing to edit."""
