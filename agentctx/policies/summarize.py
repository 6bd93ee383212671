"""Policies that put a summary in the place of old turns."""

from __future__ import annotations

from agentctx.errors import UsageError
from agentctx.history import Compaction, History
from agentctx.policies.base import EditingPolicy, SummaryPlan
from agentctx.policies.shape import task_end, turn_starts
from agentctx.policies.summaries import Asking, ExtractiveStandIn, Summarizer
from agentctx.policies.tokens import TokenCounts


class SummarizeAt(EditingPolicy):
    """One summary: at turn ``at``, turns 1 to ``first`` give way to it. The task, if the log has one, stays."""

    def __init__(
        self,
        at: int,
        first: int,
        tokens: int = 300,
        *,
        summarizer: Summarizer | None = None,
        asking: Asking = "own-prefix",
    ) -> None:
        super().__init__()
        if not 1 <= first < at or tokens < 1:
            raise UsageError(
                f"turns 1 to {first} can't be summarized in {tokens} tokens at turn {at}: choose 1 <= first < at"
            )
        self.at, self.first, self.tokens, self.asking = at, first, tokens, asking
        self.summarizer = summarizer or ExtractiveStandIn()

    @property
    def name(self) -> str:
        return f"summarize-at:{self.at},{self.first},{self.tokens}"

    def plan(self, history: History, counts: TokenCounts) -> SummaryPlan | None:
        """A summary when the turn has come, once."""
        if history.turns + 1 < self.at or _summarized(history):
            return None
        cut = history.turn_end(self.first)
        end = next((i for i, origin in enumerate(history.origins) if origin >= cut), len(history.visible))
        start = task_end(history)
        return SummaryPlan(start, end, self.tokens, self.summarizer, self.asking) if start < end else None


class SummarizeAtBudget(EditingPolicy):
    """Between two water marks: above ``budget`` tokens the old turns give way to a summary, and the prompt falls below.

    The task stays, and so do the newest turns of together at most ``keep`` tokens, at least the newest one. With ``low``
    the low water is given instead: as many of the newest turns stay as keep the prompt at most ``low`` tokens long. An
    earlier summary goes into the new one. So that a prompt which can't be brought low (a long task, a huge newest turn)
    is not rewritten at every turn, nothing is done unless at least a quarter of what lies between the marks goes.
    """

    def __init__(
        self,
        budget: int,
        keep: int | None = None,
        tokens: int = 300,
        low: int | None = None,
        *,
        summarizer: Summarizer | None = None,
        asking: Asking = "own-prefix",
    ) -> None:
        super().__init__()
        if budget < 1 or tokens < 1 or not 0 <= (keep or 0) < budget or not 0 <= (low or 0) < budget:
            raise UsageError(
                f"budget {budget}, keep {keep}, tokens {tokens}, low {low}: tokens must be at least 1, and keep and low "
                "below the budget"
            )
        self.budget, self.keep, self.tokens, self.low, self.asking = budget, keep, tokens, low, asking
        self.summarizer = summarizer or ExtractiveStandIn()

    @property
    def name(self) -> str:
        name = "summarize-fresh" if self.asking == "fresh" else "summarize-budget"
        values = {"keep": self.keep, "low": self.low}
        given = "".join(f",{key}={value}" for key, value in values.items() if value is not None)
        return f"{name}:{self.budget}{given},tokens={self.tokens}"

    def plan(self, history: History, counts: TokenCounts) -> SummaryPlan | None:
        """A summary when the prompt has outgrown the budget and it is worth the rewrite."""
        prompt = counts.prompt(history)
        starts = turn_starts(history)
        if prompt <= self.budget or not starts:
            return None
        sums = counts.sums(history)
        start = task_end(history)
        stays = prompt - (sums[-1] - sums[start])  # tools, system, pinned, task
        room = self.low - stays - self.tokens if self.low is not None else self._keep
        end = newest_turns(starts, sums, room)
        gain = sums[end] - sums[start] - self.tokens
        between = self.budget - (self._keep + self.tokens if self.low is None else self.low)
        if gain < max(self.tokens, between // 4):
            return None
        return SummaryPlan(start, end, self.tokens, self.summarizer, self.asking)

    @property
    def _keep(self) -> int:
        return self.budget // 4 if self.keep is None else self.keep


class RollingSummary(EditingPolicy):
    """A summary that swallows one more turn every turn, in front of the newest ``n`` turns.

    Here to be compared: it rewrites everything behind the task at every turn, and asks for a summary each time.
    """

    def __init__(
        self, n: int, tokens: int = 300, *, summarizer: Summarizer | None = None, asking: Asking = "fresh"
    ) -> None:
        super().__init__()
        if n < 1 or tokens < 1:
            raise UsageError(f"n {n}, tokens {tokens}: both must be at least 1")
        self.n, self.tokens, self.asking = n, tokens, asking
        self.summarizer = summarizer or ExtractiveStandIn()

    @property
    def name(self) -> str:
        return f"rolling-summary:{self.n},{self.tokens}"

    def plan(self, history: History, counts: TokenCounts) -> SummaryPlan | None:
        """A new summary as soon as a turn has left the newest ``n``."""
        starts = turn_starts(history)
        if len(starts) <= self.n:
            return None
        start, end = task_end(history), starts[-self.n]
        sums = counts.sums(history)
        if sums[end] - sums[start] <= self.tokens:
            return None  # what is there is no longer than its summary
        return SummaryPlan(start, end, self.tokens, self.summarizer, self.asking)


def newest_turns(starts: list[int], sums: list[int], room: int) -> int:
    """Where the newest turns begin that fit into ``room`` tokens; at least the newest turn."""
    return next((at for at in starts[1:] if sums[-1] - sums[at] <= room), starts[-1])


def _summarized(history: History) -> bool:
    return any(isinstance(event, Compaction) and event.how == "summarized" for event in history.events)
