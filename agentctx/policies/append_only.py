"""Send everything: the policy that never breaks a prefix."""

from __future__ import annotations

from agentctx.policies.base import EditingPolicy


class AppendOnly(EditingPolicy):
    """The whole log, every turn. Compactions that the history already holds are kept."""

    @property
    def name(self) -> str:
        return "append-only"
