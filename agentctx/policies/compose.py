"""Several policies one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentctx.errors import UsageError
from agentctx.policies.base import EditingPolicy


class Composition(EditingPolicy):
    """Each policy edits what the ones before it left; the request is built once, at the end.

    ``offload:2000+clear-results:5,4000+summarize-budget:60000`` first keeps large results out, then clears old ones, and
    summarizes when that was not enough.
    """

    def __init__(self, policies: Iterable[EditingPolicy]) -> None:
        super().__init__()
        self._members = tuple(member for policy in policies for member in policy.members())
        if not self._members:
            raise UsageError("a composition needs at least one policy")

    @property
    def name(self) -> str:
        return "+".join(member.name for member in self._members)

    def members(self) -> Sequence[EditingPolicy]:
        """The policies in their order."""
        return self._members
